"""Lightning callbacks: one class per file, re-exported here so that configs can use the short name."""
