"""What all CuTe DSL backends share: compiling, exporting, linking and loading their kernels."""
