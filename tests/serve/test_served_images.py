"""Models of images behind the API and on the page."""

import contextlib
from pathlib import Path

import pytest

import labelwise as lw
from conformance.small import small_and_short
from labelwise.testing.subject import planted_paths
from serve.browser import Browser, find_chromium
from serve.running import running_client, running_server

pytest.importorskip("fastapi", reason="the extra serve is not installed")

pytest.importorskip("torch")
pytest.importorskip("PIL")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A model of images, and one of its files."""
    data = planted_paths(24, 4)
    folder = tmp_path_factory.mktemp("images") / "pictures"
    lw.MheImage(**small_and_short("mhe_image")).fit(data).save(folder)
    return folder, data.paths[0]


def test_images_are_uploaded(pictures):
    folder, path = pictures
    fitted, content = lw.load(folder), Path(path).read_bytes()
    with running_client({"pictures": folder}) as client:
        address = "/v1/models/pictures/predict"
        answer = client.post(address, files=[("image", ("one.pgm", content))] * 2, data={"k": "2"})
        expected = fitted.predict([path], k=2).to_lists()[0]
        assert [[one["label"] for one in result["labels"]] for result in answer.json()["results"]] == [expected] * 2
        assert answer.json()["results"][0]["id"] == "one.pgm"
        explained = client.post("/v1/models/pictures/explain", files={"image": content}, data={"k": "1", "terms": "2"})
        assert len(explained.json()["explanations"][0]["falls"]) == 2
        damaged = client.post(address, files={"image": ("bad.png", b"no image")})
        assert damaged.status_code == 422
        assert damaged.json()["detail"].startswith("bad.png: ")
        stolen = client.post(address, json={"text": "/etc/passwd"})
        assert (stolen.status_code, "passwd" in stolen.text) == (415, False)
        assert client.post(address, data={"k": "2"}).status_code in (415, 422)
        assert client.get("/v1/projects").json() == {"projects": []}


@pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed (Debian: apt-get install chromium)")
def test_an_image_is_labelled_and_explained(pictures, tmp_path):
    from PIL import Image

    folder, path = pictures
    chromium = Browser(tmp_path / "chromium")
    Image.open(path).convert("RGB").resize((64, 64)).save(tmp_path / "one.png")
    with contextlib.closing(chromium), running_server({"pictures": folder}) as address:
        chromium.size(1200, 800)
        chromium.open(address)
        chromium.wait("document.querySelectorAll('#model option').length === 1")
        chromium.click("#predict")
        chromium.wait("document.querySelector('#error').innerText.includes('Choose an image')")
        chromium.choose_file("#file", tmp_path / "one.png")
        chromium.wait("document.querySelectorAll('.label').length === 4")
        assert chromium.value("document.querySelector('#picture img').naturalWidth") == 64
        chromium.click("#labels button")
        chromium.wait("document.querySelector('#map').checkVisibility()")
        assert chromium.value("document.querySelector('#map').width") == 64
        chromium.drop([("text.png", "image/png", b"no image")])
        chromium.wait("document.querySelector('#error').innerText.includes('text.png is not an image')")
