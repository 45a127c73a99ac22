// In the place of Intel's libimf, where that is not installed. The library onednn-cpu-tbb was
// linked against it and takes functions of the C standard's <math.h> from it. This one is empty and
// needs the system's libm, where the loader finds them.
