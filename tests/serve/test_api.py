"""The API answers as documented, and with what `predict` and `explain` of the model itself return."""

import json
import time

import pytest

import labelwise as lw
from serve.running import MARKUP, make_data, running_client

pytest.importorskip("fastapi", reason="the extra serve is not installed")

TEXT = "The Cat sat in the stable, next to a dog; a tariff on fur."


@pytest.fixture(scope="module")
def model(folder):
    return lw.load(folder)


def predict(client, **body):
    answer = client.post("/v1/models/topics/predict", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_one_text_has_the_models_labels_and_probabilities(client, model):
    answer = predict(client, text=TEXT, k=3)
    expected = next(iter(model.predict([TEXT], k=3)))
    assert answer["scores"] == "probability"
    (result,) = answer["results"]
    assert [one["label"] for one in result["labels"]] == [label for label, _ in expected]
    assert [one["score"] for one in result["labels"]] == pytest.approx([score for _, score in expected], rel=1e-5)
    texts = dict(zip(model.label_names_, model.label_texts_, strict=True))
    assert [one["text"] for one in result["labels"]] == [texts[label] for label, _ in expected]


def test_documents_keep_their_order_and_ids(client, model):
    texts = list(make_data(1, 15).texts)
    answer = predict(client, documents=[texts[0], *({"text": text, "id": f"d{i}"} for i, text in enumerate(texts[1:]))])
    expected = model.predict(texts).to_lists()
    assert [[one["label"] for one in result["labels"]] for result in answer["results"]] == expected
    assert [result.get("id") for result in answer["results"]] == [None, *(f"d{i}" for i in range(14))]
    assert predict(client, documents=[])["results"] == []


def test_thresholds_filters_weights_and_words(client, model):
    found = predict(client, text=TEXT, threshold="auto")["results"][0]["labels"]
    assert [one["label"] for one in found] == model.predict([TEXT], threshold="auto").to_lists()[0]
    assert all(one["score"] >= model.threshold_ for one in found)
    both = predict(client, documents=[TEXT, "violin piano"], threshold=0.3)["results"]
    expected = model.predict([TEXT, "violin piano"], threshold=0.3).to_lists()
    assert [[one["label"] for one in result["labels"]] for result in both] == expected
    only = predict(client, text=TEXT, labels=["T1", "T3"])["results"][0]["labels"]
    assert {one["label"] for one in only} <= {"T1", "T3"}
    weighted = predict(client, text=TEXT, label_weights={"T0": 0.0}, k=5)["results"][0]["labels"]
    assert "T0" not in [one["label"] for one in weighted]
    words = predict(client, text=TEXT, k=1, explain=2)["results"][0]["labels"][0]["words"]
    assert 1 <= len(words) <= 2
    assert set(words) <= set(TEXT.lower().replace(";", "").replace(",", "").replace(".", "").split())


def test_explanations_have_the_positions_of_words(client, model):
    answer = client.post("/v1/models/topics/explain", json={"text": TEXT, "labels": ["T0"], "terms": 4}).json()
    (one,) = answer["explanations"]
    expected = model.explain(TEXT, ["T0"], terms=4)[0]
    assert one["label"] == "T0"
    assert one["paths"][0]["steps"][-1]["margin"] == pytest.approx(expected.paths[0].margin, rel=1e-4)
    marked = {TEXT[begin:end].lower() for begin, end, _ in one["spans"]}
    assert marked == {term.name for term in expected.terms}
    contributions = {term.name: term.contribution for term in expected.terms}
    for begin, end, contribution in one["spans"]:
        assert contribution == pytest.approx(contributions[TEXT[begin:end].lower()], rel=1e-4)


def test_positions_of_stems_and_pairs():
    from labelwise.model.explanation import term_spans

    data = make_data(2, 60)
    config = {"ngrams": [1, 2], "stemmer": "english", "stop_words": ["the", "of"]}
    model = lw.LinearTree(trees=1, tfidf=config).fit(data)
    text = "𝔘 The songs of the choirs: singing"
    spans = term_spans(model, text, [["song"], ["song choir"], ["nothing"]])
    assert [[text[a:b] for a, b in one[0]] for one in spans] == [["songs"], ["songs of the choirs"], []]


def test_models_cards_and_labels(client, model):
    listed = {one["name"]: one for one in client.get("/v1/models").json()["models"]}
    assert listed["topics"]["threshold"] == model.threshold_
    assert (listed["topics"]["labels"], listed["topics"]["calibrated"], listed["plain"]["calibrated"]) == (
        5,
        True,
        False,
    )
    card = client.get("/v1/models/topics").json()
    assert card["card"]["data"]["documents"] == 110
    assert card["expected"].keys() == {"precision", "recall", "micro-F1"}
    found = client.get("/v1/models/topics/labels", params={"query": "MUS"}).json()["labels"]
    assert [one["text"] for one in found] == ["music"]
    assert found[0]["documents"] == model.label_counts_[model.label_names_.positions["T1"]]
    assert [one["text"] for one in client.get("/v1/models/topics/labels?query=<img").json()["labels"]] == [MARKUP]
    some = client.get("/v1/models/topics/labels?limit=2").json()
    assert (len(some["labels"]), some["more"]) == (2, True)
    assert some["labels"][0]["documents"] == max(model.label_counts_)


def test_annifs_clients_get_annifs_schema(client, model):
    projects = client.get("/v1/projects").json()["projects"]
    assert {"project_id", "name", "language", "backend", "is_trained", "modification_time"} <= projects[0].keys()
    assert client.get("/v1/projects/topics").json()["backend"] == {"backend_id": "linear_tree"}
    answer = client.post("/v1/projects/topics/suggest", data={"text": TEXT, "limit": 2, "threshold": 0.01})
    expected = next(iter(model.predict([TEXT], k=2, threshold=0.01)))
    results = answer.json()["results"]
    assert [one["uri"] for one in results] == [label for label, _ in expected]
    assert all(one.keys() == {"uri", "label", "notation", "score"} for one in results)
    batch = {"documents": [{"text": TEXT, "document_id": "a"}, {"text": "violin"}]}
    both = client.post("/v1/projects/topics/suggest-batch?limit=1", json=batch).json()
    assert [one["document_id"] for one in both] == ["a", None]
    assert both[1]["results"][0]["label"] == "music"
    assert client.post("/v1/projects/topics/suggest", data={"text": TEXT, "limit": 0}).json() == {"results": []}
    refused = client.post("/v1/projects/topics/learn", json=[{"text": TEXT, "subjects": [{"uri": "T0"}]}])
    assert (refused.status_code, "labelwise learn" in refused.json()["detail"]) == (503, True)
    assert client.post("/v1/projects/topics/suggest", data={"text": TEXT, "language": "fi"}).status_code == 400
    assert client.post("/v1/projects/none/suggest", data={"text": TEXT}).status_code == 404


def test_health_and_counts(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json()["models"] == {"topics": "ready", "plain": "ready"}
    predict(client, documents=["cat", "dog", "violin"])
    counts = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
    documents = float(counts['labelwise_documents_total{model="topics"}'])
    predict(client, documents=["cat", "dog"])
    again = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
    assert float(again['labelwise_documents_total{model="topics"}']) == documents + 2
    name = 'labelwise_request_seconds_bucket{route="/v1/models/{name}/predict",le="%s"}'
    assert float(again[name % "+Inf"]) >= float(again[name % "0.001"])
    assert float(again[name % "+Inf"]) == float(
        again['labelwise_request_seconds_count{route="/v1/models/{name}/predict"}']
    )


def test_keys_origins_and_hosts(folder, tmp_path):
    key = "a-long-and-secret-key"
    (tmp_path / "keys").write_text(f"# for the shop\n{key}\n")
    with running_client(
        {"topics": folder}, keys_file=str(tmp_path / "keys"), allow_origins=("https://shop.example",)
    ) as client:
        for headers, status in (
            ({}, 401), ({"X-API-Key": "wrong"}, 401), ({"X-API-Key": key}, 200), ({"Authorization": f"Bearer {key}"}, 200),
            ({"Authorization": key}, 401), ({"Authorization": "Bearer "}, 401),
        ):  # fmt: skip
            assert client.get("/v1/models", headers=headers).status_code == status
            assert client.get("/metrics", headers=headers).status_code == status
        assert client.get("/health").status_code == client.get("/").status_code == 200
        asked = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
        allowed = client.options("/v1/models/topics/predict", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://shop.example"
        other = client.get("/v1/models", headers={"Origin": "https://evil.example", "X-API-Key": key})
        assert "access-control-allow-origin" not in other.headers
        rebound = client.get("/v1/models", headers={"Host": "evil.example", "X-API-Key": key})
        assert rebound.status_code == 421


def test_pages_are_strict_about_content(client):
    page = client.get("/")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert client.get("/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304
    for name in ("page.js", "page.css", "docs.js", "icon.svg"):
        text = client.get(f"/static/{name}").text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
    assert client.get("/static/..%2Fapp.py").status_code == 404
    assert (
        "access-control-allow-origin" not in client.get("/v1/models", headers={"Origin": "https://a.example"}).headers
    )


def test_requests_are_computed_together_and_refused_when_too_many_wait(folder, monkeypatch):
    from concurrent.futures import ThreadPoolExecutor

    from labelwise.serve import batching

    sizes, compute = [], batching.compute

    def slow(loaded, works):
        sizes.append(len(works))
        time.sleep(1.5 if len(sizes) == 1 else 0.3)  # until the others wait, on a busy machine too
        return compute(loaded, works)

    with running_client({"topics": folder}, queue=9, max_documents=4) as client:
        monkeypatch.setattr(batching, "compute", slow)

        def ask(number):
            body = {"documents": ["cat dog", "violin"][: 1 + number % 2], "k": 1 + number % 3}
            if number == 5:
                body["labels"] = ["unknown"]
            return client.post("/v1/models/topics/predict", json=body)

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(ask, range(6)))
        assert [one.status_code for one in answers] == [200] * 5 + [422]
        assert answers[0].json()["results"][0]["labels"][0]["text"] == "animals"
        assert max(sizes) > 1
        with ThreadPoolExecutor(12) as pool:
            codes = [one.status_code for one in pool.map(lambda _: ask(0), range(12))]
            later = ask(0)
        assert set(codes) == {200, 429}
        assert later.status_code == 200


def test_late_answers_are_refused(folder, monkeypatch):
    from labelwise.serve import batching

    compute = batching.compute
    with running_client({"topics": folder}, timeout=0.2) as client:
        monkeypatch.setattr(batching, "compute", lambda *given: time.sleep(0.6) or compute(*given))
        late = client.post("/v1/models/topics/predict", json={"text": "cat"})
        assert (late.status_code, late.json()["type"]) == (503, "urn:labelwise:problem:timeout")
        assert int(late.headers["retry-after"]) >= 1
        monkeypatch.setattr(batching, "compute", compute)
        time.sleep(0.6)
        assert client.post("/v1/models/topics/predict", json={"text": "cat"}).status_code == 200


def test_the_document_describes_bodies_and_problems(client):
    made = client.get("/openapi.json").json()
    text = json.dumps(made)
    for name in {one.split("/")[-1].rstrip('"') for one in text.split('"$ref": ')[1:] for one in [one.split('"')[1]]}:
        assert name in made["components"]["schemas"], name
    operation = made["paths"]["/v1/models/{name}/predict"]["post"]
    assert operation["requestBody"]["content"].keys() == {"application/json", "multipart/form-data"}
    assert "application/problem+json" in operation["responses"]["429"]["content"]


def test_the_document_describes_every_answer_and_has_valid_examples(client):
    from labelwise.serve import schemas

    made = client.get("/openapi.json").json()
    for path, operations in made["paths"].items():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                for content in answer.get("content", {}).values():
                    assert content["schema"], (path, status)
    assert made["paths"]["/metrics"]["get"]["responses"]["200"]["content"].keys() == {"text/plain"}
    assert client.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
    count = 0
    for name, schema in made["components"]["schemas"].items():
        for one in schema.get("examples", []):
            getattr(schemas, name).model_validate(one, strict=True)
            count += 1
    assert count >= 5
    schemas.Health.model_validate(client.get("/health").json(), strict=True)
    schemas.Readiness.model_validate(client.get("/ready").json(), strict=True)
