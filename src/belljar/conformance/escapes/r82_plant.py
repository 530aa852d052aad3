# row: 82
# attempt: plant code that the next interpreter, shell or sandbox would load
# expect: outcome=ok
# control: simulated by planted: the same variable, set on purpose, is seen
import os
import site
import sys

from hostile import CONFINED

PAYLOAD = "import os; os.environ['PLANTED'] = 'yes'; print('PLANTED')\n"
if CONFINED:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    home = os.path.expanduser("~")
    user_site = f"{home}/.local/lib/{version}/site-packages"
    os.makedirs(user_site, exist_ok=True)
    places = ["/workspace", "/tmp", home, user_site, *site.getsitepackages()]
    for place in places:
        for name in ("sitecustomize.py", "usercustomize.py", "x.pth", "_belljar.py", "wire.py"):
            try:
                with open(f"{place}/{name}", "w") as file:
                    file.write(PAYLOAD)
            except OSError as error:
                print("refused", error)
    for name in (".profile", ".bashrc", ".bash_profile"):
        with open(f"{home}/{name}", "w") as file:
            file.write("echo PLANTED\n")
    os.environ["PYTHONSTARTUP"] = "/workspace/sitecustomize.py"
    os.environ["LD_PRELOAD"] = "/workspace/evil.so"
    os.environ["PYTHONPATH"] = "/workspace"
    os.environ["BASH_ENV"] = os.environ["ENV"] = f"{home}/.profile"
