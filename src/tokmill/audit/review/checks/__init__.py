"""The checks, one module for each group. A check is a function of the evidence that yields findings and assumptions."""
