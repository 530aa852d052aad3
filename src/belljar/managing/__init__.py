"""Many named sandboxes of one process: AsyncSandboxManager, and SandboxManager, which blocks."""
