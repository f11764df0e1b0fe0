"""One engine for tensor programs.

A program is a flat list of steps (`steps`) over values that grow with the width n: families of
vectors (`vectors`), scalars (`scalars`) and weight matrices (`matrices`), each with a power of n. A
machine (`interpreter`) runs the steps in the limit. There are two front ends: `widelimit.netsor`,
where steps are written by hand, and `widelimit.trace`, which reads them off JAX's own programs.
"""
