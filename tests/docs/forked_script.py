"""A script that is run in a folder as `python SCRIPT` there.

python -m tests.docs.forked_script FOLDER SCRIPT
"""

import os
import runpy
import sys

if __name__ == "__main__":
    os.chdir(sys.argv[1])
    sys.path.insert(0, sys.argv[1])
    runpy.run_path(sys.argv[2], run_name="__main__")
