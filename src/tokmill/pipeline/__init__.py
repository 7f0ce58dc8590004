"""A recipe as a plan of steps, and the session that runs them."""
