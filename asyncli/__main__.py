from asyncli.cli.main import main

main()
