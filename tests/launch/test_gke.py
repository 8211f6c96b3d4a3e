"""launch/gke.sh: its manifest as YAML, and its calls against a fake kubectl."""

import os
import subprocess
from typing import Any

import pytest
import yaml
from fake_cloud import Cloud

RUN = [
    *("--name=bert", "--topology=v5e:4x4", "--image=us-docker.pkg.dev/p/r/bert:1"),
    *("--bucket=my-bucket", "--data=data/books", "--workdir=runs/books"),
]
CONFIG = ["--", "--config=base"]


def manifest(cloud: Cloud, *arguments: str) -> dict[str, Any]:
    done = cloud.run("gke.sh", "render", *RUN, *arguments)
    assert done.returncode == 0, done.stderr
    assert "@" not in done.stdout
    return yaml.safe_load(done.stdout)


def slices(rendered: dict[str, Any]) -> dict[str, Any]:
    return rendered["spec"]["replicatedJobs"][0]


def pod(rendered: dict[str, Any]) -> dict[str, Any]:
    return slices(rendered)["template"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("topology", "flags", "accelerator", "hosts", "chips"),
    [
        ("v4:2x2x4", [], "tpu-v4-podslice", 4, 4),
        ("v5e:4x4", [], "tpu-v5-lite-podslice", 4, 4),
        ("v5e:2x4", ["--chips_per_host=8"], "tpu-v5-lite-podslice", 1, 8),
        ("v5e:1x1", [], "tpu-v5-lite-podslice", 1, 1),
        ("v5p:2x2x1", [], "tpu-v5p-slice", 1, 4),
        ("v6e:16x16", [], "tpu-v6e-slice", 64, 4),
    ],
)
def test_a_slice_has_its_hosts(cloud: Cloud, topology, flags, accelerator, hosts, chips):
    rendered = manifest(cloud, f"--topology={topology}", *flags, "--slices=3", *CONFIG)
    assert slices(rendered)["replicas"] == 3
    job = slices(rendered)["template"]["spec"]
    assert job["parallelism"] == job["completions"] == hosts
    assert pod(rendered)["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology.split(":")[1],
    }
    resources = pod(rendered)["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"] == {"google.com/tpu": chips}


def test_what_starts_again_and_what_does_not(cloud: Cloud):
    rendered = manifest(cloud, "--max_restarts=7", "--spot", *CONFIG)
    policy = rendered["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 7
    assert [(rule["action"], rule["onJobFailureReasons"]) for rule in policy["rules"]] == [
        ("FailJobSet", ["PodFailurePolicy"])
    ]
    job = slices(rendered)["template"]["spec"]
    assert job["backoffLimit"] == 0
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    codes = rule["onExitCodes"]
    assert (codes["operator"], codes["containerName"]) == ("In", "train")
    assert {1, 2} <= set(codes["values"])
    assert not {0, 75, 137, 143} & set(codes["values"])
    # Kubernetes takes a pod failure policy with this alone.
    assert pod(rendered)["restartPolicy"] == "Never"
    assert pod(rendered)["nodeSelector"]["cloud.google.com/gke-spot"] == "true"


def test_the_bucket_is_mounted_where_training_looks(cloud: Cloud):
    rendered = manifest(cloud, *CONFIG)
    (container,) = pod(rendered)["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(rendered)["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert volumes["gcs"]["csi"]["volumeAttributes"]["bucketName"] == "my-bucket"
    assert container["command"][-2:] == [
        f"{mounts['gcs']}/data/books",
        f"{mounts['gcs']}/runs/books",
    ]
    assert mounts["staged"] == "/root/staged"  # $HOME/staged of tpu_host.sh
    template = slices(rendered)["template"]["spec"]["template"]
    assert template["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"


def test_arguments_stay_what_they_are(cloud: Cloud):
    given = ["--config=base", 'it\'s "so" \\ é: # - [x]', "$(HOME) $$ $", "a\nb\tc", "", "null"]
    (container,) = pod(manifest(cloud, "--", *given))["containers"]
    # Kubernetes makes "$" of "$$", and $(NAME) else of a variable.
    assert [argument.replace("$$", "$") for argument in container["args"]] == given
    assert not any("$" in argument.replace("$$", "") for argument in container["args"])


def test_names_are_strings(cloud: Cloud):
    rendered = manifest(cloud, "--name=null", "--bucket=12345", "--namespace=1e3", *CONFIG)
    assert rendered["metadata"]["name"] == "null"
    assert rendered["metadata"]["namespace"] == "1e3"
    assert pod(rendered)["volumes"][0]["csi"]["volumeAttributes"]["bucketName"] == "12345"


@pytest.mark.parametrize(("end", "code"), [("Completed", 0), ("Failed", 1)])
def test_a_run_to_its_end(cloud: Cloud, end, code):
    cloud.plan([], [], jobset=["", "", end])
    done = cloud.run("gke.sh", "run", *RUN, *CONFIG)
    assert done.returncode == code
    assert f"the run is {end}" in done.stderr
    applied = yaml.safe_load((cloud.folder / "manifest.yaml").read_text())
    assert applied == manifest(cloud, *CONFIG)


def test_one_that_runs_is_left_alone_and_one_that_is_over_is_replaced(cloud: Cloud):
    cloud.plan([], [], jobset=["", "", "", "Failed"])
    assert cloud.run("gke.sh", "run", *RUN, *CONFIG).returncode == 1
    cloud.plan([], [], jobset=["", "Completed"], name="there")
    assert cloud.run("gke.sh", "run", *RUN, *CONFIG).returncode == 0
    assert len(cloud.calls("apply")) == 1
    cloud.plan([], [], jobset=["Failed"], name="there")
    assert cloud.run("gke.sh", "resume", *RUN, *CONFIG).returncode == 1
    assert len(cloud.calls("delete")) == 1
    assert len(cloud.calls("apply")) == 2


def test_the_other_commands(cloud: Cloud):
    cloud.plan([], [], jobset=["Completed"])
    assert cloud.run("gke.sh", "watch", "--name=bert").returncode == 75
    for _ in range(2):
        assert cloud.run("gke.sh", "delete", "--name=bert").returncode == 0
    logs = cloud.run("gke.sh", "logs", "--name=bert", "--follow")
    assert logs.stdout.startswith("[pod/bert-slice-0-0-")
    cloud.plan([], [], jobset=[""], failing=1)
    failed = cloud.run("gke.sh", "watch", "--name=bert")
    assert failed.returncode == 1
    assert "kubectl fails, see above" in failed.stderr


def test_a_dry_run_shows_the_manifest_and_calls_nothing(cloud: Cloud):
    dry = cloud.run("gke.sh", "run", "--dry_run", *RUN, *CONFIG)
    assert dry.returncode == 0, dry.stderr
    assert not cloud.calls()
    cloud.plan([], [], jobset=["Completed"])
    # What it shows can be given to a shell.
    environment = os.environ | {
        "PATH": f"{cloud.folder / 'bin'}:{os.environ['PATH']}",
        "FAKE_CLOUD": str(cloud.folder),
    }
    subprocess.run(["bash", "-ec", dry.stdout], check=True, env=environment)
    assert [call[1] for call in cloud.calls()] == ["get", "apply", "get"]
    applied = yaml.safe_load((cloud.folder / "manifest.yaml").read_text())
    assert applied == manifest(cloud, *CONFIG)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "nothing: must be render, run"),
        (["run", *RUN, "--topology=v5e", *CONFIG], "--topology=v5e: must be a kind"),
        (["run", *RUN, "--topology=v9:2x2", *CONFIG], "--topology=v9:2x2: of v4, v5e"),
        (["run", *RUN, "--topology=v4:3x3", *CONFIG], "no multiple of --chips_per_host=4"),
        (["run", *RUN, "--image=Not an image", *CONFIG], "--image=Not an image: must be"),
        (["run", *RUN, "--name=b@D", *CONFIG], "--name=b@D: must be"),
        (["run", *RUN], "give the arguments of train"),
    ],
)
def test_bad_usage_of_gke_is_told_in_a_line(cloud: Cloud, arguments, told):
    done = cloud.run("gke.sh", *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not cloud.calls()
