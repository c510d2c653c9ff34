from repsim_cli.cli import main

main()
