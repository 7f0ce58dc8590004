"""One file per part of the page: facts in, markup out. A part that has nothing to show says why."""
