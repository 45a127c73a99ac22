"""Files of clusters and services, the presets of the package, and the files of RAMPA's simulator."""
