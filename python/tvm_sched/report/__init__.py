"""Output for people: the HTML report, the Chrome trace, the tables. It imports neither TVM nor a solver."""
