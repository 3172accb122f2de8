"""The cost model's numbers, fitted by `bench.fit`: coefficients and corrections."""
