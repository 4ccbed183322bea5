"""What things are: frozen data and the rules that make it valid. No I/O, no clock, standard library only."""
