"""Rules of the engine: values in, values out; no I/O, no clock, no logging."""
