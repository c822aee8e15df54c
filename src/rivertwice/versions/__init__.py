"""Two definitions over one part of the log: try, advise, compare, switch."""
