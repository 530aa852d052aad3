"""Many named sandboxes of one process: AsyncSandboxManager, and its blocking twin SandboxManager."""
