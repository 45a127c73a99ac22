"""What people look at: the HTML report, the Chrome trace, and the figures that tables share. Imports neither TVM nor a solver."""
