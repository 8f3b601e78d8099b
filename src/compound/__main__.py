"""The command line as a module: `python -m compound`, and `torchrun -m compound` for several processes."""

from compound.cli.app import main

if __name__ == "__main__":
    main(prog_name="compound")
