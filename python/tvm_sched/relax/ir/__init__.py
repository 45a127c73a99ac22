"""What all stages of the compiler share: module attributes, documents, statements, loops."""
