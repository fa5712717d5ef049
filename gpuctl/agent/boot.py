"""The two programs that reach a node as `python -I -c …`: one runs a verb of the bundle, one receives the bundle.

They are text because there is nothing of ours on the node yet. Both are ASCII, stand on the standard library, and begin
their output with a preamble: whatever a login script printed before it is noise. One line after it says how it stands:
`{"found": true}`, and the verb's own output follows; `{"missing": true}`; or `{"old": "3.6.8"}`.

A bundle is run only if it is a file of ours in a folder of ours that nobody else can write to, and its bytes have the
digest in its name.
"""

PREAMBLE = b"\x01gpuctl\n"

# Python 2 and early 3 must be able to parse this much, to say what they are.
_OPENING = r"""
import os, sys
os.write(1, b"\x01gpuctl\n")
if sys.version_info < (3, 8):
    os.write(1, ('{"old": "%d.%d.%d"}\n' % sys.version_info[:3]).encode("ascii"))
    sys.exit(91)
import hashlib, json, pwd, stat
state, digest = sys.argv[1:3]
if state == "~" or state.startswith("~/"):
    state = pwd.getpwuid(os.geteuid()).pw_dir + state[1:]
folder = os.path.join(state, "agent")
path = os.path.join(folder, digest + ".pyz")
"""

BOOT = (
    _OPENING
    + r"""
def ours(facts):
    return facts.st_uid == os.geteuid() and not facts.st_mode & 0o022
def sound():
    try:
        if not ours(os.stat(folder)):
            return False
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            facts = os.fstat(file.fileno())
            return stat.S_ISREG(facts.st_mode) and ours(facts) and hashlib.sha256(file.read()).hexdigest() == digest
    except OSError:
        return False
if not sound():
    print('{"missing": true}', flush=True)
    sys.exit(90)
os.write(1, b'{"found": true}\n')
import runpy
sys.argv = [path] + sys.argv[3:]
runpy.run_path(path, run_name="__main__")
"""
)

RECEIVE = (
    _OPENING
    + r"""
aside = path + ".%d.part" % os.getpid()
def refuse(what, hint):
    print(json.dumps({"error": {"code": 4, "what": what, "hint": hint}}), flush=True)
    sys.exit(4)
os.umask(0o077)
try:
    os.makedirs(folder, exist_ok=True)
    for each in (state, folder):
        if os.stat(each).st_uid != os.geteuid():
            refuse(each + " belongs to another user", "Give this node another state_dir in the inventory.")
        os.chmod(each, 0o700)
    data = sys.stdin.buffer.read()
    if hashlib.sha256(data).hexdigest() != digest:
        refuse("the agent's files did not arrive whole", "Try again.")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        if os.path.exists(aside):
            os.unlink(aside)
except OSError as error:
    refuse("can't write to %s: %s" % (folder, error.strerror),
           "Make room or give access there, or name another state_dir in the inventory.")
print('{"received": true}', flush=True)
"""
)
