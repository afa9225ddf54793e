"""Entry point of `python -m tiger`."""

import sys

from tiger.cli import main

if __name__ == "__main__":
    main()
    # A process that ends while threads of its group still run may be aborted.
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
