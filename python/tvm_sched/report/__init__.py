"""What people look at: the HTML report, the Chrome trace, the tables. Imports neither TVM nor a solver."""
