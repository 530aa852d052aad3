"""What the native and the Docker backend share: system calls, seccomp, control groups, /proc."""
