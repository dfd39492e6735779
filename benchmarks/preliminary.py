"""The mark of figures that were measured while other programs used the machine."""

# The load of a machine that does nothing else is below this.
QUIET = 0.7
PRELIMINARY = "**Preliminary: other programs used the machine. Measure again when it is quiet.**"
