"""The ways to GPU memory that programs here try, one name each; tests/gpu tries them on a real GPU."""

# Ways to the driver, of access.c: linked with it, and without.
LINKED = ["linked", "next", "threads", "fork", "fork_after_use", "exec", "spawn"]
LOADED = [
    "dlopen",
    "dlsym_of_dlsym",
    "dlsym_of_a_version",
    "get_proc_address",
    "get_proc_address_v2",
    "get_proc_address_of_itself",
    "own_elf_walk",
    "full_path",
    "full_path_deepbind",
    "namespace",
    "deepbind_plugin_dlsym",
    "deepbind_plugin_linked",
    "namespace_plugin_dlsym",
    "namespace_plugin_linked",
]

# Functions that take memory, of allocate.c.
KINDS = [
    "linear",
    "small",
    "fragments",
    "odd",
    "pitch",
    "managed",
    "async",
    "async_odd",
    "async_ptsz",
    "from_own_pool",
    "from_own_pool_ptsz",
    "from_default_pool",
    "physical",
    "physical_mapped",
    "array",
    "array_3d",
    "mipmapped",
    "graph",
    "in_primary_context",
]

# The same, in a locality domain of a GPU: drivers 615 and later (CUDA 13.4).
LOCAL_KINDS = ["physical_local", "pool_local", "graph_local"]
