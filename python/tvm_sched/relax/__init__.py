"""The room that imports TVM: import of models, passes, target, build."""
