"""
The job script with a vLLM server. TRL sends it weights by NCCL alone, so neither it nor what trains with it can run on
a CPU: stand-ins note how they were called, and their calls are read by the parsers of the real ones.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ports import free_port

from sage_trl.train import make_parser

ROOT = Path(__file__).parents[2]
SERVER = f"""#!{sys.executable}
import http.server, json, os, sys, time
open("server.json", "w").write(json.dumps(sys.argv[1:]))
if "SERVER_FAILS" in os.environ:
    sys.exit(3)
time.sleep(0.5)  # it loads
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
LAUNCHER = f"""#!{sys.executable}
import json, os, sys, urllib.request
address = f"http://{{os.environ['SERVER']}}:{{os.environ['SERVER_PORT']}}/health"
assert urllib.request.urlopen(address).status == 200
open(f"launcher_{{os.environ['SLURM_NODEID']}}.json", "w").write(json.dumps(sys.argv[1:]))
sys.exit(int(os.environ.get("TRAINING_ENDS_WITH", 0)))
"""
SRUN = """#!/bin/bash
# One process on each machine of the step. It hands SIGTERM on, as srun does
while [[ $1 == --* ]]; do [[ $1 == --nodes=* ]] && nodes="${1#--nodes=}"; shift; done
for ((SLURM_NODEID = 0; SLURM_NODEID < nodes; SLURM_NODEID++)); do export SLURM_NODEID; "$@" & pids="$pids $!"; done
trap 'kill $pids; wait; touch "stopped_$1"; exit 143' TERM
for pid in $pids; do wait "$pid" || exit $?; done
"""


@pytest.fixture
def cluster(tmp_path):
    commands = tmp_path / ".venv/bin"
    commands.mkdir(parents=True)
    (commands / "activate").write_text(f'PATH="{commands}:{Path(sys.executable).parent}:$PATH"\n')
    scontrol = "#!/bin/bash\nprintf '127.0.0.1\\nelsewhere\\n127.0.0.1\\n' | tail -n ${NODES_GIVEN:-3}\n"
    stand_ins = {"srun": SRUN, "scontrol": scontrol, "trl": SERVER, "accelerate": LAUNCHER}
    for name, text in stand_ins.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    recipe = tmp_path / "recipe.yaml"
    settings = {"model_name_or_path": "some/model", "task": "countdown", "reward_funcs": ["countdown"]}
    recipe.write_text(yaml.safe_dump(settings | {"output_dir": "run"}))
    environment = os.environ | {"RECIPE": str(recipe), "STOPPABLE": str(ROOT / "examples/slurm/stoppable.sh")}
    environment |= {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_GPUS_ON_NODE": "8"}
    return tmp_path, environment | {"SERVER_PORT": free_port()}


def submit(environment):
    command = ["bash", str(ROOT / "examples/slurm/vllm_server.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_training_starts_with_the_server_and_ends_it(cluster):
    folder, environment = cluster
    result = submit(environment)
    assert result.returncode == 0, result.stderr
    assert (folder / "stopped_bash").exists()
    served = json.loads((folder / "server.json").read_text())
    assert served[:3] == ["vllm-serve", "--model", "some/model"]
    launched = [json.loads((folder / f"launcher_{number}.json").read_text()) for number in range(2)]
    assert [launch[launch.index("--machine_rank") + 1] for launch in launched] == ["0", "1"]
    assert launched[0][launched[0].index("--num_processes") + 1] == "16"  # of the two machines that train
    settings = launched[0][launched[0].index("sage_trl.train") + 1 :]
    _, training, _ = make_parser().parse_run([*settings, "--bf16", "false", "--use_cpu", "true"])
    assert training.use_vllm and training.vllm_mode == "server"
    address = f"http://{training.vllm_server_host}:{training.vllm_server_port}"
    assert address == f"http://127.0.0.1:{environment['SERVER_PORT']}"


def test_the_server_s_settings_are_trl_s(cluster):
    serve = pytest.importorskip("trl.scripts.vllm_serve")
    folder, environment = cluster
    assert submit(environment | {"TENSOR_PARALLEL": "2"}).returncode == 0
    given = json.loads((folder / "server.json").read_text())[1:]
    (settings,) = serve.make_parser().parse_args_and_config(given)
    assert (settings.model, settings.tensor_parallel_size) == ("some/model", 2)
    assert settings.port == int(environment["SERVER_PORT"])


def test_training_that_fails_ends_the_server_and_the_job(cluster):
    folder, environment = cluster
    assert submit(environment | {"TRAINING_ENDS_WITH": "7"}).returncode == 7
    assert (folder / "stopped_bash").exists()


def test_a_server_that_fails_ends_the_job(cluster):
    folder, environment = cluster
    result = submit(environment | {"SERVER_FAILS": "1"})
    assert (result.returncode, list(folder.glob("launcher_*"))) == (1, [])
    assert result.stderr == "vllm_server.sh: the server ended before it was ready\n"


def test_one_machine_is_too_few(cluster):
    result = submit(cluster[1] | {"NODES_GIVEN": "1"})
    assert result.returncode == 1 and "sbatch --nodes 2" in result.stderr
