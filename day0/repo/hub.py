"""Files of a model repo on the hub: small files through huggingface_hub's cache, headers by ranged requests.

HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and HF_HOME work as huggingface_hub defines them. Tokens travel in request headers
only, which huggingface_hub drops on redirects to another host; no error or log of ours repeats a header or a full URL.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from day0.errors import Day0Error
from day0.repo.files import MAX_TEXT_BYTES, LocalFiles, RepoFiles, check_relative
from day0.repo.headers import FIRST_READ_BYTES, FileHeader, read_header

REQUEST_TIMEOUT_S = 10.0
ATTEMPTS = 3
FIRST_PAUSE_S = 0.5
_SLOWEST_BYTES_PER_S = 100_000  # a transfer below this rate counts as stuck
_RETRY_STATUS = {408, 429, 500, 502, 503, 504}

Result = TypeVar("Result")


def open_hub_files(repo_id: str, *, revision: str | None = None, cache_dir: Path | None = None) -> RepoFiles:
    """Files of `repo_id` at `revision` (branch, tag or commit; None: main), pinned to the commit found now.

    Offline (HF_HUB_OFFLINE=1) it is the cached snapshot, where there is one. Raises Day0Error: unknown id or revision,
    gated without access, no network, offline and not cached.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return _cached_snapshot(repo_id, revision, cache_dir)
    return HubFiles(repo_id, revision, cache_dir)


def _cached_snapshot(repo_id: str, revision: str | None, cache_dir: Path | None) -> LocalFiles:
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repo_id, "config.json", cache_dir=cache_dir, revision=revision)
    if not isinstance(config, str):
        raise Day0Error(
            f"{repo_id} is not in the hub cache, and HF_HUB_OFFLINE is set",
            hint=f"unset HF_HUB_OFFLINE, or run `hf download {repo_id}` where there is a network",
        )
    snapshot = Path(config).parent
    return LocalFiles(snapshot, revision=snapshot.name)


class HubFiles:
    """A commit of a hub repo (see `RepoFiles`)."""

    revision: str | None

    def __init__(self, repo_id: str, revision: str | None, cache_dir: Path | None) -> None:
        from huggingface_hub import HfApi

        self.repo_id = repo_id
        self.cache_dir = cache_dir
        self._asked_revision = revision
        info = self._request(
            lambda: HfApi().model_info(repo_id, revision=revision, files_metadata=True, timeout=REQUEST_TIMEOUT_S)
        )
        self.revision = info.sha
        self._sizes = {check_relative(f.rfilename, "the hub's list of files"): f.size for f in info.siblings or []}

    def names(self) -> frozenset[str]:
        return frozenset(self._sizes)

    def read_bytes(self, path: str) -> bytes:
        size = self._size(path)
        if size > MAX_TEXT_BYTES:
            raise Day0Error(
                f"{path} has {size} bytes, too many for a text file", hint="check that the file is what its name says"
            )
        return self.local_path(path).read_bytes()

    def safetensors_header(self, path: str, *, headers_only: bool) -> FileHeader:
        size = self._size(path)
        snapshot = self._snapshot_with(path)
        if snapshot is not None:
            return snapshot.safetensors_header(path, headers_only=headers_only)
        return read_header(
            lambda start, end: bytes(self._ranged_get(path, start, end)), size, path, headers_only=headers_only
        )

    def read_range(self, path: str, start: int, end: int) -> bytearray:
        snapshot = self._snapshot_with(path)
        if snapshot is not None:
            return snapshot.read_range(path, start, end)
        return self._ranged_get(path, start, end)

    def local_path(self, path: str) -> Path:
        from huggingface_hub import hf_hub_download

        self._size(path)
        snapshot = self._snapshot_with(path)
        if snapshot is not None:
            return snapshot.local_path(path)
        file = Path(
            self._request(
                lambda: hf_hub_download(
                    self.repo_id,
                    path,
                    revision=self.revision,
                    cache_dir=self.cache_dir,
                    etag_timeout=REQUEST_TIMEOUT_S,
                )
            )
        )
        self._remember_revision(file.parents[path.count("/") + 2])
        return file

    def _remember_revision(self, cached_repo: Path) -> None:
        """Note in the cache which commit the asked revision is: a download by commit does not, and offline needs it."""
        if self._asked_revision == self.revision or self.revision is None:
            return
        reference = cached_repo / "refs" / check_relative(self._asked_revision or "main", "the revision")
        reference.parent.mkdir(parents=True, exist_ok=True)
        new = reference.with_name(f"{reference.name}.{os.getpid()}")
        new.write_text(self.revision)
        new.replace(reference)

    def _size(self, path: str) -> int:
        if path not in self._sizes:
            raise Day0Error(f"{path} is not in {self.repo_id}", hint="check that the repo is complete")
        size = self._sizes[path]
        if size is None:
            raise Day0Error(f"the hub does not tell the size of {path}", hint="download the repo and open the folder")
        return size

    def _snapshot_with(self, path: str) -> LocalFiles | None:
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(self.repo_id, path, cache_dir=self.cache_dir, revision=self.revision)
        return LocalFiles(Path(cached).parents[path.count("/")]) if isinstance(cached, str) else None

    def _ranged_get(self, path: str, start: int, end: int) -> bytearray:
        if start == end:
            return bytearray()
        data = self._request(lambda: self._ranged_get_once(path, start, end))
        if len(data) != end - start:
            raise Day0Error(
                f"{path}: the hub sent {len(data)} of {end - start} bytes asked for", hint="try again later"
            )
        return data

    def _ranged_get_once(self, path: str, start: int, end: int) -> bytearray:
        from huggingface_hub import constants, get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

        url = hf_hub_url(self.repo_id, path, revision=self.revision, endpoint=constants.ENDPOINT)
        headers = build_hf_headers() | {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        deadline = time.monotonic() + 6 * REQUEST_TIMEOUT_S + (end - start) / _SLOWEST_BYTES_PER_S
        data = bytearray()
        with get_session().stream(
            "GET", url, headers=headers, timeout=REQUEST_TIMEOUT_S, follow_redirects=True
        ) as response:
            hf_raise_for_status(response)
            if response.status_code != 206 and start > 0:
                raise Day0Error(
                    "the hub server does not answer ranged requests",
                    hint="download the repo (`hf download`) and open the folder",
                )
            for chunk in response.iter_raw(FIRST_READ_BYTES):
                data += chunk
                if len(data) >= end - start:
                    break  # a server that ignores Range would go on to the end of the file
                if time.monotonic() > deadline:
                    raise Day0Error(f"{path}: the transfer is stuck", hint="check the network and try again")
        return data[: end - start]

    def _request(self, call: Callable[[], Result]) -> Result:
        """Result of `call`, tried up to ATTEMPTS times on transient failures; any failure ends as a Day0Error."""
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.utils import httpx  # type: ignore[attr-defined]

        for attempt in range(1, ATTEMPTS + 1):
            try:
                return call()
            except Day0Error:
                raise
            except HfHubHTTPError as error:
                if error.response.status_code not in _RETRY_STATUS or attempt == ATTEMPTS:
                    raise self._explain(error) from error
            except httpx.TransportError as error:
                if attempt == ATTEMPTS:
                    raise self._explain(error) from error
            except Exception as error:  # whatever else the client raises; the cause stays chained for --debug
                raise self._explain(error) from error
            time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _explain(self, error: Exception) -> Day0Error:
        from huggingface_hub import constants, errors
        from huggingface_hub.utils import httpx  # type: ignore[attr-defined]

        repo = self.repo_id
        if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
            return self._explain(error.__cause__)
        if isinstance(error, errors.GatedRepoError):
            return Day0Error(
                f"{repo} is gated, and this account has no access",
                hint=f"accept its terms at {constants.ENDPOINT}/{repo}, then set HF_TOKEN or run `hf auth login`",
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return Day0Error(
                f"{repo} has no revision {self._asked_revision!r}", hint="give a branch, tag or commit of the repo"
            )
        if isinstance(error, errors.RepositoryNotFoundError):
            return Day0Error(
                f"{repo} is not on the hub, or is private",
                hint="check the spelling (org/name); for a private repo set HF_TOKEN; for a folder write ./folder",
            )
        if isinstance(error, errors.HfHubHTTPError):
            status = error.response.status_code
            if status in (401, 403):
                return Day0Error(
                    f"the hub refuses access to {repo} (HTTP {status})",
                    hint="set HF_TOKEN to a token that may read it, or run `hf auth login`",
                )
            return Day0Error(
                f"the hub answers HTTP {status} for {repo}", hint="try again later; see https://status.huggingface.co"
            )
        if isinstance(error, httpx.TransportError | errors.LocalEntryNotFoundError):
            return Day0Error(
                f"no connection to the hub at {constants.ENDPOINT} ({type(error).__name__})",
                hint="check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses what is cached; or open a folder",
            )
        if isinstance(error, OSError) and error.errno is not None:
            return Day0Error(
                f"the hub cache cannot be written ({error.strerror})", hint="check the disk, or set HF_HOME elsewhere"
            )
        return Day0Error(
            f"the hub at {constants.ENDPOINT} gives no usable answer for {repo} ({type(error).__name__})",
            hint="check HF_ENDPOINT and the id",
        )
