from runtime_plans import register_kernels

register_kernels()
