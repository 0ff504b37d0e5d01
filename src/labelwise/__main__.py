"""`python -m labelwise` is the command `labelwise`, for environments whose scripts are not on the path."""

from labelwise.cli.main import main

if __name__ == "__main__":
    main()
