"""A worker of Servo in Python, with the standard library only.

It executes assets whose command names one of the ACTIONS below, on a bucket of Google Cloud
Storage. docs/worker-contract.md is the contract, docs/howto/write-a-worker.md explains this file.
"""

import argparse
import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MAX_ENVELOPE = 100_000
MAX_BODY = 10_000_000  # the rest of a larger request body is not read
LONG = 25 * 60  # seconds after which a delivery is answered before the task ends
REPEATED = (408, 425, 429)  # callbacks and requests to the store are repeated after these statuses and 5xx


# ---- What the worker can do ---------------------------------------------------------------------


def write_text(task, words, inputs, output):
    """Writes the words of the command and the values of the partition into a file."""
    words = list(words) + list(task.partition.values())
    (output / "text.txt").write_text(" ".join(words) + "\n", encoding="utf-8")


def count_words(task, words, inputs, output):
    """Counts the words in all files of all inputs."""
    total = 0
    for asset, files in inputs.items():
        for file in files:
            task.check()
            total += len(file.read_text(encoding="utf-8").split())
        task.log(f"read {len(files)} files of {asset}")
    (output / "count.txt").write_text(f"{total}\n", encoding="utf-8")


def sleep(task, words, inputs, output):
    """Waits for some seconds, as an example of a long task."""
    end = time.monotonic() + float(words[0])
    while time.monotonic() < end:
        task.check()
        time.sleep(0.05)


# An action gets the task, the arguments of the asset's command, the files of its inputs by asset,
# and an empty folder for its output. It calls task.check() now and then.
ACTIONS = {"write_text": write_text, "count_words": count_words, "sleep": sleep}


# ---- Errors ---------------------------------------------------------------------------------------


class Invalid(Exception):
    """The envelope is wrong (400)."""


class Forged(Exception):
    """The signature is wrong or has expired (401)."""


class Failure(Exception):
    """The task failed, with the fields of the report."""

    def __init__(self, code, category, message, retryable, outcome="failed"):
        super().__init__(message)
        self.outcome = outcome
        self.error = {"code": code, "category": category, "message": message[:16_000], "retryable": retryable}


class Abandoned(Exception):
    """Another attempt is the current one: nothing is reported."""


def unavailable(message):
    return Failure("STORE_UNAVAILABLE", "infrastructure", message, True)


# ---- Envelopes ------------------------------------------------------------------------------------


FIELDS = set("""
    asset_key attempt attempt_id auth authorization callbacks contract_version expires_at finished heartbeat
    heartbeat_timeout_sec key_id materialization_id partition_key plan_ref run_id signature started task_key tenant_id
    timeout_sec traceparent tracestate without workspace_id
""".split())


def unique(pairs):
    """Rejects an object with duplicate names, or with names that differ only in case."""
    if len({name.lower() for name, _ in pairs}) != len(pairs):
        raise Invalid("two names of an object are equal, or differ only in case")
    for name, _ in pairs:
        if name not in FIELDS and name.lower() in FIELDS:
            raise Invalid(f"the name {name!r} is not in lower case")
    return dict(pairs)


def no_number(text):
    raise Invalid(f"the number {text} is not an integer")


def canonical(value):
    """Returns the canonical JSON (RFC 8785) of a value whose numbers are integers."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def field(data):
    return len(data).to_bytes(8, "big") + data


def open_envelope(body, keys, now):
    """Returns the envelope if its signature is valid and has not expired."""
    try:
        envelope = json.loads(body, object_pairs_hook=unique, parse_float=no_number, parse_constant=no_number)
        auth = envelope["auth"]
        signature = auth.pop("signature")
        domain = f"servo/{envelope['tenant_id']}/{envelope['workspace_id']}"
        signed, expires = canonical(envelope), datetime.fromisoformat(auth["expires_at"].replace("Z", "+00:00"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise Invalid(f"not an envelope: {e!r}") from e
    secret = keys.get(auth.get("key_id"))
    if secret is None:
        raise Forged("unknown key")
    key = hmac.new(secret, domain.encode(), hashlib.sha256).digest()
    mac = hmac.new(key, field(b"servo envelope 1") + field(signed), hashlib.sha256).digest()
    want = base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
    if not isinstance(signature, str) or not hmac.compare_digest(signature.encode(), want.encode()):
        raise Forged("the signature is wrong")
    if now >= expires:
        raise Forged("the signature has expired")
    if not str(envelope.get("contract_version", "")).startswith("1."):
        raise Invalid("contract_version is not 1.x")
    return envelope


def timestamp():
    return datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


# ---- Names of objects ------------------------------------------------------------------------------


def escaped(text):
    """Returns a text as part of an object key."""
    return "".join(
        chr(c) if chr(c).isascii() and (chr(c).isalnum() or chr(c) in "_-.") else f"%{c:02X}" for c in text.encode()
    )


def partition_segment(partition_key):
    if not partition_key:
        return "_"
    values = json.loads(partition_key)
    segment = ",".join(escaped(name).replace("-", "%2D") + "-" + escaped(values[name]) for name in sorted(values))
    if len(segment) > 200:
        return "~" + hashlib.sha256(partition_key.encode()).hexdigest()
    return segment


def log_segment(task_key):
    segment = escaped(task_key)
    if len(segment) > 200 or not segment.strip("."):
        return "~" + hashlib.sha256(task_key.encode()).hexdigest()
    return segment


BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def task_hash(task_key):
    """Returns the hash of a task key as in the field "without" of an envelope."""
    return base64.urlsafe_b64encode(hashlib.sha256(task_key.encode()).digest()[:6]).decode()


def materialization_id(tenant, workspace, run_id, task_key):
    """Returns the id of the output of a task of the same run."""
    number = 0
    for c in run_id:
        number = number << 5 | BASE32.index(c)
    text = f"{tenant}|{workspace}|{run_id}|{task_key}|materialization"
    number = number >> 80 << 80 | int.from_bytes(hashlib.sha256(text.encode()).digest()[:10], "big")
    return "".join(BASE32[number >> shift & 31] for shift in range(125, -1, -5))


def crc_table():
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        yield n


CRC_TABLE = list(crc_table())


def crc32c(data):
    """Returns the CRC-32C of data. Install google-crc32c for large files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


# ---- Storage and callbacks -------------------------------------------------------------------------


def request(url, data=None, headers=None, timeout=30):
    """Sends a request. Returns status and body; status 0 means that the outcome is unknown."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=timeout) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()
    except OSError:
        return 0, b""


def persist(send, tries=6):
    """Repeats send, with backoff, until it has a definite answer."""
    for n in range(tries):
        status, body = send()
        if status and status < 500 and status not in REPEATED:
            return status, body
        if n + 1 < tries:
            time.sleep(min(0.2 * 2**n, 10))
    return status, body


class Bucket:
    """A bucket, by Cloud Storage's JSON API."""

    METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"

    def __init__(self, name):
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        self.url = f"http://{emulator}" if emulator else "https://storage.googleapis.com"
        self.name, self.emulated = name, bool(emulator)
        self.token, self.until, self.lock = "", 0.0, threading.Lock()

    def authorization(self):
        if self.emulated:
            return {}
        with self.lock:
            if time.monotonic() > self.until:
                status, body = persist(lambda: request(self.METADATA, headers={"Metadata-Flavor": "Google"}))
                if status != 200:
                    raise unavailable(f"no token from the metadata server: status {status}")
                answer = json.loads(body)
                self.token, self.until = answer["access_token"], time.monotonic() + answer["expires_in"] - 60
            return {"Authorization": "Bearer " + self.token}

    def get(self, key):
        """Returns the content of an object, or None if it does not exist."""
        url = f"{self.url}/storage/v1/b/{self.name}/o/{urllib.parse.quote(key, safe='')}?alt=media"
        status, body = persist(lambda: request(url, headers=self.authorization()))
        if status == 404:
            return None
        if status != 200:
            raise unavailable(f"read {key}: status {status}")
        return body

    def create(self, key, data):
        """Creates an object if it is absent. Returns False if it exists."""
        metadata = {"name": key, "crc32c": base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()}
        boundary = secrets.token_hex(16)
        body = b"".join([
            f"--{boundary}\r\nContent-Type: application/json\r\n\r\n".encode(), json.dumps(metadata).encode(),
            f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(), data,
            f"\r\n--{boundary}--\r\n".encode(),
        ])
        url = f"{self.url}/upload/storage/v1/b/{self.name}/o?uploadType=multipart&ifGenerationMatch=0"
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        status, _ = persist(lambda: request(url, body, headers | self.authorization()))
        if status not in (200, 412):
            raise unavailable(f"create {key}: status {status}")
        return status == 200

    def delete(self, key):
        url = f"{self.url}/storage/v1/b/{self.name}/o/{urllib.parse.quote(key, safe='')}"
        try:
            urllib.request.urlopen(urllib.request.Request(url, headers=self.authorization(), method="DELETE"), timeout=30)
        except (OSError, Failure):
            pass  # `servo admin gc` deletes the object later


class Callbacks:
    """The callbacks of an attempt, with the URLs that answers renew."""

    def __init__(self, envelope):
        self.urls = {k: v for k, v in envelope["callbacks"].items() if k != "authorization"}
        self.signatures = dict(envelope["callbacks"].get("authorization", {}))
        self.headers = {k: envelope[k] for k in ("traceparent", "tracestate") if envelope.get(k)}
        self.lock = threading.Lock()

    def send(self, verb, body):
        with self.lock:
            url, signature = self.urls[verb], self.signatures.get(verb)
        headers = self.headers | {"Content-Type": "application/json"}
        if signature:
            headers["Authorization"] = signature
        status, answer = request(url, json.dumps(body).encode(), headers)
        try:
            answer = json.loads(answer)
        except ValueError:
            answer = {}
        if status == 200:
            renewed = answer.get("callbacks", {})
            with self.lock:
                self.urls |= {k: v for k, v in renewed.items() if k != "authorization"}
                self.signatures |= renewed.get("authorization", {})
        return status, answer


# ---- Executions -------------------------------------------------------------------------------------


class Task:
    """One execution of an attempt."""

    def __init__(self, envelope, worker):
        self.env, self.worker, self.bucket = envelope, worker, worker.bucket
        self.callbacks = Callbacks(envelope)
        self.nonce = secrets.token_hex(8)
        self.begun = timestamp()
        self.partition = json.loads(envelope.get("partition_key") or "{}")
        limit = envelope.get("timeout_sec", 0)
        self.deadline = time.monotonic() + limit if limit else None
        self.stopped, self.lines = None, []
        self.accepted, self.ended = threading.Event(), threading.Event()
        self.status = 500  # of the answer to the queue

    # Called by actions.

    def log(self, text):
        self.lines.append(text)

    def check(self):
        """Raises an error if the task must stop."""
        if self.stopped is not None:
            raise self.stopped
        if self.deadline is not None and time.monotonic() > self.deadline:
            message = f"timed out after {self.env['timeout_sec']}s"
            raise Failure("TASK_TIMEOUT", "resource", message, True, outcome="timed_out")

    # Called by the worker.

    def stop(self, why):
        self.stopped = self.stopped or why

    def run(self):
        """Executes the attempt, reports it, and sets the status for the queue."""
        try:
            self.status = self.attempt()
        except Exception as e:  # the queue delivers again
            print(f"task {self.env['task_key']}: {e!r}", file=sys.stderr, flush=True)
        finally:
            self.ended.set()
            self.accepted.set()

    def attempt(self):
        report = {"attempt_id": self.env["attempt_id"], "worker_id": self.worker.name, "started_at": self.begun}
        status, answer = persist(lambda: self.callbacks.send("started", report))
        if status != 200:
            return 200 if 400 <= status < 500 and status not in REPEATED else 500
        report["started_at"] = answer.get("started_at") or self.begun
        self.accepted.set()
        threading.Thread(target=self.heartbeat, daemon=True).start()
        try:
            report |= {"outcome": "succeeded"} | self.execute()
        except Abandoned:
            return 200
        except Failure as e:
            report |= {"outcome": e.outcome, "error": e.error}
            self.log(e.error["message"])
        except Exception as e:
            report |= {"outcome": "failed", "error": Failure("ACTION_FAILED", "user", repr(e), True).error}
            self.log(repr(e))
        report["completed_at"] = timestamp()
        self.store_log()
        status, _ = persist(lambda: self.callbacks.send("finished", report))
        return 200 if status in (200, 409) else 500

    def heartbeat(self):
        interval = max(1, min(10, self.env["heartbeat_timeout_sec"] / 4))
        while not self.ended.wait(interval):
            body = {"attempt_id": self.env["attempt_id"], "worker_id": self.worker.name, "heartbeat_at": timestamp()}
            status, answer = self.callbacks.send("heartbeat", body)
            if status == 409:
                self.stop(Abandoned())
            elif status == 200 and answer.get("should_cancel"):
                self.stop(Failure("CANCELLED", "cancelled", "the run was cancelled", False, outcome="cancelled"))

    def store_log(self):
        env = self.env
        key = (f"logs/tenant={env['tenant_id']}/workspace={env['workspace_id']}/{env['run_id']}/"
               f"{log_segment(env['task_key'])}/{env['attempt']}-{env['attempt_id']}.log")
        try:
            self.bucket.create(key, "".join(line + "\n" for line in self.lines).encode())
        except Failure as e:
            print(f"log of {env['task_key']}: {e}", file=sys.stderr, flush=True)

    def execute(self):
        """Executes the task, unless it has been committed, and returns fields of the report."""
        work, definition, plan = self.plan()
        files = work.get("output") != "none"
        marker = self.marker() if files else None
        if marker is None:
            action, *words = work.get("command") or [""]
            if action not in ACTIONS:
                raise Failure("COMMAND_NOT_FOUND", "user", f"this worker has no action {action!r}", False)
            with tempfile.TemporaryDirectory() as scratch:
                inputs = self.inputs(definition, plan, Path(scratch))
                output = Path(scratch) / "output"
                output.mkdir()
                self.check()
                ACTIONS[action](self, words, inputs, output)
                self.check()
                made = sorted(path for path in output.rglob("*") if path.is_file())
                if not files:
                    if made:
                        raise Failure("INVALID_OUTPUT", "user", f"output: none, but {made[0].name} was written", False)
                    return {}
                marker = self.commit(output, made)
        output = {k: marker[k] for k in ("uri", "row_count", "byte_size", "schema_hash") if k in marker}
        return {"output": output, "materialization_id": self.env["materialization_id"]}

    def plan(self):
        key = self.env["plan_ref"]
        data = self.bucket.get(key)
        if data is None:
            raise Failure("PLAN_MISSING", "infrastructure", f"the plan {key} does not exist", False)
        if hashlib.sha256(data).hexdigest() + ".json" != key.rsplit("/", 1)[-1]:
            raise Failure("PLAN_UNREADABLE", "infrastructure", f"the plan {key} is damaged", False)
        plan = json.loads(data)
        definition = next(t for t in plan["tasks"] if t["task_key"] == self.env["task_key"])
        return plan["assets"][self.env["asset_key"]], definition, plan

    # Inputs.

    def inputs(self, definition, plan, scratch):
        """Downloads the inputs and returns their files by asset."""
        found = {}
        without = self.env.get("without", "")
        tolerant = without == "*" and definition.get("trigger_rule") in ("all_done", "none_failed")
        failed = {without[i:i + 8] for i in range(0, len(without), 8)}
        for n, (asset, source) in enumerate(sorted(definition.get("inputs", {}).items())):
            items = plan["groups"][source["group"]] if "group" in source else source.get("items", [])
            found[asset] = []
            for m, item in enumerate(items):
                if "task_key" in item and task_hash(item["task_key"]) in failed:
                    continue  # the upstream failed or was skipped
                marker = self.input_marker(asset, item, plan)
                if marker is None and tolerant and "task_key" in item:
                    continue  # the upstream probably failed or was skipped
                if marker is None:
                    message = f"{asset} {item.get('partition_key', '')} was never committed, or was deleted"
                    raise Failure("MISSING_INPUT", "infrastructure", message, True)
                folder = scratch / f"input{n}" / str(m)
                found[asset] += [self.download(marker["uri"], file, folder) for file in marker["files"]]
        return found

    def input_marker(self, asset, item, plan):
        if "task_key" in item:
            upstream = next(t for t in plan["tasks"] if t["task_key"] == item["task_key"])
            partition = upstream.get("partition_key", "")
            domain = self.env["tenant_id"], self.env["workspace_id"]
            identity = materialization_id(*domain, self.env["run_id"], item["task_key"])
            folder = "assets/%s/%s/" % domain + f"{asset}/{partition_segment(partition)}/{identity}/"
        else:
            folder = item["uri"].rstrip("/").rsplit("/", 1)[0] + "/"
        data = self.bucket.get(folder + "_commit.json")
        if data is None:
            return None
        marker = json.loads(data)
        if not marker["uri"].startswith(folder):
            raise Failure("INVALID_MARKER", "infrastructure", f"the marker in {folder} names {marker['uri']}", False)
        return marker

    def download(self, uri, file, folder):
        self.check()
        data = self.bucket.get(uri + file["name"])
        if data is None or len(data) != file["size"] or crc32c(data) != file["crc32c"]:
            raise Failure("INVALID_INPUT", "infrastructure", f"{uri}{file['name']} is missing or damaged", False)
        path = folder / file["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    # Output.

    def folder(self):
        env = self.env
        partition = partition_segment(env.get("partition_key", ""))
        return (f"assets/{env['tenant_id']}/{env['workspace_id']}/{env['asset_key']}/{partition}/"
                f"{env['materialization_id']}/")

    def marker(self):
        data = self.bucket.get(self.folder() + "_commit.json")
        return None if data is None else json.loads(data)

    def commit(self, output, made):
        """Stores the files, then creates the marker. Returns the marker that counts."""
        env, uri, files = self.env, f"{self.folder()}{self.env['attempt_id']}-{self.nonce}/", []
        for path in made:
            self.check()
            data, name = path.read_bytes(), path.relative_to(output).as_posix()
            self.bucket.create(uri + name, data)  # False: an earlier try has stored it
            files.append({"name": name, "size": len(data), "crc32c": crc32c(data)})
        self.check()
        marker = {
            "materialization_id": env["materialization_id"], "run_id": env["run_id"], "task_key": env["task_key"],
            "asset_key": env["asset_key"], "partition_key": env.get("partition_key", ""), "attempt": env["attempt"],
            "attempt_id": env["attempt_id"], "nonce": self.nonce, "uri": uri, "files": files, "row_count": 0,
            "byte_size": sum(file["size"] for file in files), "started_at": self.begun, "committed_at": timestamp(),
        }
        if self.bucket.create(self.folder() + "_commit.json", json.dumps(marker).encode()):
            return marker
        winner = self.marker()
        if winner is None:
            raise unavailable("the commit marker exists, but cannot be read")
        if winner["nonce"] != self.nonce:
            for file in files:
                self.bucket.delete(uri + file["name"])
        return winner


class Worker:
    def __init__(self, bucket, keys, concurrency):
        self.bucket, self.keys = bucket, keys
        self.name = f"{socket.gethostname()}-{os.getpid()}"
        self.slots, self.lock = threading.Semaphore(concurrency), threading.Lock()
        self.tasks, self.closing = {}, False

    def execute(self, envelope):
        """Returns the status of the answer to a delivery."""
        began = time.monotonic()
        with self.lock:
            if self.closing:
                return 500
            task = self.tasks.get(envelope["attempt_id"])
            if task is None:
                task = self.tasks[envelope["attempt_id"]] = Task(envelope, self)
                threading.Thread(target=self.work, args=(task,), daemon=True).start()
        task.accepted.wait(LONG)
        if not task.accepted.is_set():
            return 500  # the task waits for a slot; a later delivery waits for the same execution
        if envelope.get("timeout_sec", 0) <= LONG:
            task.ended.wait(max(0, LONG - (time.monotonic() - began)))
        return task.status if task.ended.is_set() else 202

    def work(self, task):
        with self.slots:
            task.run()
        with self.lock:
            del self.tasks[task.env["attempt_id"]]

    def close(self):
        """Interrupts all tasks and waits until they are reported, for 8 seconds at most."""
        with self.lock:
            self.closing, tasks = True, list(self.tasks.values())
        for task in tasks:
            task.stop(Failure("WORKER_INTERRUPTED", "infrastructure", "the worker ends", True))
        end = time.monotonic() + 8
        for task in tasks:
            task.ended.wait(max(0, end - time.monotonic()))


def handler(worker):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status, body=None):
            data = json.dumps(body or {}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/problem+json" if status >= 400 else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            self.answer(200 if self.path in ("/healthz", "/readyz") else 404)

        def do_POST(self):
            size = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(min(size, MAX_BODY))
            try:
                if self.path != "/execute":
                    return self.answer(404)
                if size > MAX_ENVELOPE:
                    self.close_connection = size > MAX_BODY
                    raise Invalid("the body is too large")
                envelope = open_envelope(body, worker.keys, datetime.now(timezone.utc))
            except Invalid as e:
                return self.answer(400, {"title": "Bad Request", "status": 400, "detail": str(e)})
            except Forged as e:
                return self.answer(401, {"title": "Unauthorized", "status": 401, "detail": str(e)})
            return self.answer(worker.execute(envelope))

        def log_message(self, *args):
            pass

    return Handler


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--keys", required=True, help="the file of keys that sign envelopes")
    parser.add_argument("--listen", default="127.0.0.1:8081")
    parser.add_argument("--concurrency", type=int, default=4)
    args = parser.parse_args()
    try:
        keyring = json.loads(Path(args.keys).read_text(encoding="utf-8"))
        keys = {name: base64.b64decode(secret) for name, secret in keyring["secrets"].items()}
    except (OSError, ValueError, KeyError, binascii.Error) as e:
        raise SystemExit(f"worker: read keys {args.keys}: {e!r}") from e
    worker = Worker(Bucket(args.bucket), keys, args.concurrency)
    host, _, port = args.listen.rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), handler(worker))
    server.daemon_threads = True

    def end(*_):
        threading.Thread(target=lambda: (worker.close(), server.shutdown())).start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    print(f"worker {worker.name} serves on http://{args.listen}", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
