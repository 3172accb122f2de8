"""Device code that the CuTe backends share."""
