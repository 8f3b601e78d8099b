"""HTML reports and plot styles, shared by table reports and experiments."""
