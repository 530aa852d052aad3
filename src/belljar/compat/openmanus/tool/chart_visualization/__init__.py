"""The tool for data analysis of OpenManus' chart_visualization."""
