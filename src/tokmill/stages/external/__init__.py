"""Tables, columns and rows that are more than a task can hold."""
