"""How cost grows: tables of a number against time, for what an operator has many of."""
