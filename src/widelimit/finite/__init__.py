"""Networks of finite width: drawn and run, widened, and their kernels measured."""
