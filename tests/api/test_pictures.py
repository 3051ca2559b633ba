"""Matplotlib figures and PIL images as results of runs, with the packages of the real package index."""

from __future__ import annotations

import base64
import textwrap
from typing import Any

import pytest

from tests.conftest import Rpc, Server, StartShared
from tests.environments.test_dependencies import REAL_INDEX, no_index
from tests.support.mcp_client import Mcp
from tests.support.needing import create, needing

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
NAME = "acme.drawing"
FIGURE = "import matplotlib.pyplot as plt\n"
IMAGE = "from PIL import Image\nimage = Image.new('RGB', (4, 3), 'red')\n"


@pytest.fixture(scope="module")
def drawing(shared_server: StartShared) -> Rpc:
    """Return a client of a server whose skill NAME brings matplotlib and pillow to code that mounts the skill."""
    if why := no_index():
        pytest.skip(why)
    server: Server = shared_server("pictures", "sqlite", SKILLERY_PACKAGES_INDEX_URLS=REAL_INDEX)
    made = needing(NAME, "matplotlib>=3.9,<4", "pillow>=11")
    create(server.rpc, made, FIGURE + "def main(args):\n    plt.plot([1, 2])\n")
    assert run(server.rpc, "import PIL, matplotlib\ndef main(args): pass")["status"] == "completed"
    return server.rpc


def run(rpc: Rpc, code: str) -> dict[str, Any]:
    found: dict[str, Any] = rpc("run_code", language="python", code=code, entrypoint="main", mount_skills=[NAME])
    return found


def read(rpc: Rpc, blob_id: str) -> bytes:
    return base64.b64decode(rpc("read_blob", blob_id=blob_id, mode="full")["content"])


def paths(answer: dict[str, Any]) -> list[str]:
    return [file["path"] for file in answer.get("files", [])]


@pytest.mark.long
def test_open_figures_become_pictures_and_log_nothing(drawing: Rpc) -> None:
    answer = drawing("execute_skill", name=NAME)

    [file] = answer["files"]
    assert (answer["status"], answer["output"], answer["logs_preview"]) == ("completed", None, "")
    assert (file["path"], file["kind"]) == ("figure-1.png", "image/png")
    assert answer["output_blobs"] == [file["blob_id"]]
    content = read(drawing, file["blob_id"])
    assert (content[:8], len(content)) == (PNG, file["size_bytes"])
    assert drawing("get_run", run_id=answer["run_id"])["files"] == answer["files"]


def test_list_of_fonts_is_there_before_matplotlib_is_imported(drawing: Rpc) -> None:
    code = """
    import os, pathlib
    from matplotlib import font_manager
    def main(args):
        [file] = pathlib.Path(os.environ['XDG_CACHE_HOME'], 'matplotlib').iterdir()
        return [file.is_symlink(), len(font_manager.fontManager.ttflist) > 10]
    """
    assert run(drawing, textwrap.dedent(code))["output"] == [True, True]


def test_showing_a_figure_neither_fails_nor_warns(drawing: Rpc) -> None:
    code = "def main(args):\n    plt.plot([1])\n    plt.show()\n    plt.figure()\n    plt.show()\n"

    answer = run(drawing, FIGURE + code)

    assert (paths(answer), answer["logs_preview"]) == (["figure-1.png", "figure-2.png"], "")


def test_figures_that_were_closed_are_none(drawing: Rpc) -> None:
    code = "def main(args):\n    plt.plot([1])\n    plt.savefig('chart.png')\n    plt.close()\n"

    assert "files" not in run(drawing, FIGURE + code)


def test_a_repeated_figure_in_the_output_references_a_single_picture(drawing: Rpc) -> None:
    code = "def main(args):\n    figure = plt.figure()\n    return {'chart': figure, 'again': [figure], 'n': 1}\n"

    answer = run(drawing, FIGURE + code)

    [file] = answer["files"]
    reference = {name: file[name] for name in ("blob_id", "kind", "size_bytes")}
    assert answer["output"] == {"chart": reference, "again": [reference], "n": 1}


def test_a_figure_without_pyplot_is_a_picture(drawing: Rpc) -> None:
    answer = run(drawing, "from matplotlib.figure import Figure\ndef main(args): return Figure()\n")

    assert (answer["output"]["kind"], paths(answer)) == ("image/png", ["figure-1.png"])


def test_an_image_in_the_output_is_a_reference(drawing: Rpc) -> None:
    answer = run(drawing, IMAGE + "def main(args): return [image, image.convert('CMYK')]\n")

    assert (paths(answer), [one["kind"] for one in answer["output"]]) == (
        ["image-1.png", "image-2.png"],
        ["image/png", "image/png"],
    )
    content = read(drawing, answer["output"][0]["blob_id"])
    assert (content[:8], content[16:24]) == (PNG, (4).to_bytes(4) + (3).to_bytes(4))


def test_an_image_that_was_opened_as_jpeg_stays_that(drawing: Rpc) -> None:
    answer = run(drawing, IMAGE + "image.save('a.jpg')\ndef main(args): return Image.open('a.jpg')\n")

    assert (paths(answer), answer["output"]["kind"]) == (["image-1.jpg"], "image/jpeg")
    assert read(drawing, answer["output"]["blob_id"]).startswith(JPEG)


def test_an_image_that_png_cannot_store_fails_with_the_reason(drawing: Rpc) -> None:
    answer = run(drawing, IMAGE + "def main(args): return image.convert('F')\n")

    assert (answer["status"], answer["error"]["type"]) == ("failed", "InvalidOutput")
    assert "cannot write mode F as PNG" in answer["error"]["message"]


def test_a_figure_that_cannot_be_drawn_is_omitted_and_reported(drawing: Rpc) -> None:
    answer = run(drawing, FIGURE + "def main(args):\n    plt.title('$\\\\nonsense$')\n    plt.figure()\n    return 1\n")

    assert (answer["output"], paths(answer)) == (1, ["figure-1.png"])
    assert "not kept of the open figures: figure 1: ValueError" in answer["logs_preview"]


def test_more_figures_than_are_kept_are_reported(drawing: Rpc) -> None:
    code = "def main(args):\n    for n in range(23): plt.figure(figsize=(1, 1))\n    return 1\n"

    answer = run(drawing, "import warnings; warnings.simplefilter('ignore')\n" + FIGURE + code)

    assert len(paths(answer)) == 20
    assert "3 more" in answer["logs_preview"]


def test_failed_code_draws_no_figures_and_keeps_its_files(drawing: Rpc) -> None:
    code = "import os\ndef main(args):\n    os.mkdir('out')\n    plt.savefig('out/half.png')\n    raise KeyError(1)\n"

    answer = run(drawing, FIGURE + code)

    assert (answer["error"]["type"], paths(answer)) == ("KeyError", ["half.png"])


def test_numbers_and_arrays_of_numpy_become_json(drawing: Rpc) -> None:
    answer = run(
        drawing, "import numpy\ndef main(args): return [numpy.arange(3), numpy.int64(1), numpy.float32(0.5)]\n"
    )

    assert answer["output"] == [[0, 1, 2], 1, 0.5]


def test_unsupported_output_types_are_refused_with_a_remedy(drawing: Rpc) -> None:
    answer = run(drawing, f"{FIGURE}def main(args): return plt.gca()\n")

    assert answer["error"]["type"] == "InvalidOutput"
    assert "return its figure" in answer["error"]["message"]


@pytest.mark.full
def test_a_model_sees_small_pictures_over_mcp(drawing: Rpc) -> None:
    result = Mcp(drawing).tool("execute_skill", name=NAME)

    text, image = result["content"]
    assert (text["type"], image["type"], image["mimeType"]) == ("text", "image", "image/png")
    assert base64.b64decode(image["data"]).startswith(PNG)
