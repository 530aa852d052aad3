"""Other systems' sandboxes under their own names, each a thin adapter over the one engine:

belljar.compat.pandasai      PandasAI's DockerSandbox
belljar.compat.openmanus     OpenManus' DockerSandbox, SandboxManager and tools
belljar.compat.dolphin       dolphin-mcp's DockerSandboxExecutor
belljar.compat.executor      DockerExecutor, DockerConfig, SecurityValidator, ContainerMonitor
"""
