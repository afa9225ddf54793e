"""Tables, plots and the trace page, made from recorded runs."""
