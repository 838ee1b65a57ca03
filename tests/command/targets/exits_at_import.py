import sys

sys.exit("no")
