"""MySQL: connections, named statements and what is done with them."""
