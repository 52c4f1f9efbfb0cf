"""What upstream builds, read from its own source: workflows, CMake files and server arguments."""
