"""`llm_datadist` as scripts import it: the published call sequences, and links in TLS."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from belay.agents.datadist import BlocksCacheKey, LLMConfig, LLMDataDist, LLMException, LLMRole, LLMStatusCode, channels
from tests.certificates import authority, certificate
from tests.link_ends import cluster_info, end_of, ends, port_of
from tests.test_datadist import desc, filled

pytestmark = pytest.mark.real_time

__all__ = ["ends"]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "agents/training/packages"
S = LLMStatusCode


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The package, as a script finds it."""
    monkeypatch.syspath_prepend(str(PACKAGES))
    import llm_datadist

    return llm_datadist


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def both(one: Callable[[], None], other: Callable[[], None]) -> None:
    """Run two ends at once; what either raises is raised here."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors


def test_the_sequence_of_the_sample_that_switches_roles(package: ModuleType) -> None:
    """Decoder links, pulls and unlinks; both change roles; the former prompt links; the former decoder pushes."""
    d = package
    step = threading.Barrier(2, timeout=60)
    prompt_port, decoder_port = free_port(), free_port()
    shape = {"num_tensors": 2, "shape": [3, 10], "data_type": d.DataType.DT_FLOAT, "placement": d.Placement.HOST}
    ours = [bytearray(b"\x01" * 120) for _ in range(2)]
    theirs = [bytearray(120) for _ in range(2)]

    def started(role: LLMRole, cluster: int, port: int | None) -> LLMDataDist:
        end = d.LLMDataDist(role, cluster)
        config = d.LLMConfig()
        config.device_id = 0
        config.local_comm_res = ""
        if port is not None:
            config.listen_ip_info = f"127.0.0.1:{port}"
        end.init(config.generate_options())
        return end

    def info(cluster: int, port: int | None, local: bool = True) -> object:
        made = d.LLMClusterInfo()
        made.remote_cluster_id = cluster
        if local:
            made.append_local_ip_info("127.0.0.1", 26000)
        if port is not None:
            made.append_remote_ip_info("127.0.0.1", port)
        return made

    def prompt() -> None:
        end = started(d.LLMRole.PROMPT, 0, prompt_port)
        cache = end.cache_manager.register_blocks_cache(d.CacheDesc(**shape), ours, d.BlocksCacheKey(0, 0))
        step.wait()  # registered
        step.wait()  # the decoder has unlinked
        end.switch_role(d.LLMRole.DECODER)
        step.wait()  # this side listens no more
        step.wait()  # the decoder listens
        assert end.link_clusters([info(1, decoder_port)], 5000)[0] == d.LLMStatusCode.LLM_SUCCESS
        step.wait()  # linked
        step.wait()  # pushed
        assert end.unlink_clusters([info(1, None, local=False)], 5000, force=True)[0] == d.LLMStatusCode.LLM_SUCCESS
        end.cache_manager.unregister_cache(cache.cache_id)
        end.finalize()

    def decoder() -> None:
        end = started(d.LLMRole.DECODER, 1, None)
        cache = end.cache_manager.register_blocks_cache(d.CacheDesc(**shape), theirs, d.BlocksCacheKey(1, 0))
        step.wait()
        assert end.link_clusters([info(0, prompt_port)], 5000)[0] == d.LLMStatusCode.LLM_SUCCESS
        end.cache_manager.pull_blocks(d.BlocksCacheKey(0, 0), cache, src_blocks=[0, 1], dst_blocks=[0, 2])
        assert theirs[0] == b"\x01" * 40 + bytes(40) + b"\x01" * 40
        assert end.unlink_clusters([info(0, prompt_port, local=False)], 5000)[0] == d.LLMStatusCode.LLM_SUCCESS
        step.wait()
        step.wait()
        config = d.LLMConfig()
        config.listen_ip_info = f"127.0.0.1:{decoder_port}"
        end.switch_role(d.LLMRole.PROMPT, config.generate_options())
        step.wait()
        step.wait()
        end.cache_manager.push_blocks(
            d.BlocksCacheKey(0, 0), cache, src_blocks=[0, 1, 2], dst_blocks=[0, 1, 2],
            src_layer_range=range(0, 2), dst_layer_range=range(0, 2), tensor_num_per_layer=1,
        )  # fmt: skip
        step.wait()
        assert end.unlink_clusters([info(0, None, local=False)], 5000, force=True)[0] == d.LLMStatusCode.LLM_SUCCESS
        end.cache_manager.unregister_cache(cache.cache_id)
        end.finalize()

    both(prompt, decoder)
    assert ours == theirs


def test_rows_of_a_cache_are_pushed_and_pulled_by_its_number(ends: list[LLMDataDist], package: ModuleType) -> None:
    prompt, decoder = end_of(ends, 1, LLMRole.PROMPT, port=0), end_of(ends, 2)
    far, near = filled(), filled()
    theirs = prompt.cache_manager.register_cache(desc(), far)
    mine = decoder.cache_manager.register_cache(desc(), near)
    assert decoder.link_clusters([cluster_info(1, port_of(prompt))])[0] is S.LLM_SUCCESS

    decoder.cache_manager.push_cache(package.CacheKeyByIdAndIndex(1, theirs.cache_id, 5), mine, src_batch_index=2)
    assert far[1][5 * 32 : 6 * 32] == near[1][2 * 32 : 3 * 32]
    decoder.cache_manager.pull_cache(package.CacheKeyByIdAndIndex(1, theirs.cache_id, 7), mine, batch_index=0)
    assert near[0][:32] == far[0][7 * 32 :]
    with pytest.raises(LLMException) as caught:
        decoder.cache_manager.pull_cache(package.CacheKeyByIdAndIndex(1, 99, 0), mine)
    assert caught.value.status_code is S.LLM_KV_CACHE_NOT_EXIST


def test_blocks_are_copied_inside_one_process(ends: list[LLMDataDist]) -> None:
    manager = end_of(ends, 1).cache_manager
    memory, spare = filled(), [bytearray(256) for _ in range(2)]
    cache, other = manager.register_blocks_cache(desc(), memory), manager.register_blocks_cache(desc(), spare)
    manager.copy_blocks(cache, {0: [3, 4]})
    assert memory[1][96:160] == memory[1][:32] * 2
    manager.swap_blocks(cache, other, {1: 7})
    assert spare[0][224:] == memory[0][32:64] and not any(spare[0][:224])
    with pytest.raises(ValueError, match="target block"):
        manager.swap_blocks(cache, other, {1: 8})
    assert len(cache.tensor_addrs) == 2 and all(cache.tensor_addrs)


def test_names_are_those_of_the_package_and_what_is_missing_says_why(package: ModuleType) -> None:
    assert package.LLMStatusCode.LLM_WAIT_PROCESS_TIMEOUT == 0x5010B001
    assert package.LLMStatusCode.LLM_REPEAT_REQUEST == 0x5010B003
    # the place of a code travels between ends of different versions
    assert [code.name for code in LLMStatusCode][:18][-1] == "LLM_OUT_OF_MEMORY"
    assert package.LlmConfig is package.LLMConfig
    assert package.BlocksCacheKey(cluster_id=3) == package.BlocksCacheKey(prompt_cluster_id=3, model_id=0)
    from llm_datadist.configs import LLMRole as again
    from llm_datadist.status import LLMException as raised
    from llm_datadist.v2.llm_types import CacheDesc

    assert (again, raised, CacheDesc) == (package.LLMRole, package.LLMException, package.CacheDesc)
    with pytest.raises(ImportError, match="CacheKeyByIdAndIndex"):
        from llm_datadist import CacheKey  # noqa: F401
    with pytest.raises(AttributeError):
        package.NoSuchName  # noqa: B018


def test_a_second_init_changes_nothing(ends: list[LLMDataDist]) -> None:
    end = end_of(ends, 1, port=0)
    before = end.listening
    end.init({})
    assert end.listening == before


# ---- TLS


def secured(files: tuple[Path, Path, Path]) -> dict[str, str]:
    return dict(zip(("tls_cert", "tls_key", "tls_ca"), map(str, files), strict=True))


def test_links_in_tls_carry_blocks_both_ways(ends: list[LLMDataDist], tmp_path: Path) -> None:
    authority(tmp_path, "ours")
    one, two = (secured(certificate(tmp_path, name, "ours")) for name in ("prompt", "decode"))
    prompt, decoder = end_of(ends, 1, LLMRole.PROMPT, port=0, **one), end_of(ends, 2, **two)
    # several pieces of TLS, and more than one buffer of the kernel
    wide = desc(2, 4, 1 << 20)
    memory = [bytearray(bytes([n + 1]) * (8 << 20)) for n in range(2)]
    mine = [bytearray(8 << 20) for _ in range(2)]
    prompt.cache_manager.register_blocks_cache(wide, memory, BlocksCacheKey(1))
    cache = decoder.cache_manager.register_blocks_cache(wide, mine)
    assert decoder.link_clusters([cluster_info(1, port_of(prompt))], 10_000)[0] is S.LLM_SUCCESS

    decoder.cache_manager.pull_blocks(BlocksCacheKey(1), cache, [0, 1, 2, 3], [0, 1, 2, 3])
    assert mine == memory
    mine[0][:10] = b"0123456789"
    decoder.cache_manager.push_blocks(BlocksCacheKey(1), cache, [0], [3])
    assert memory[0][6 << 20 :][:10] == b"0123456789"
    decoder.check_link_status(1)
    assert decoder.unlink_clusters([cluster_info(1, port_of(prompt))])[0] is S.LLM_SUCCESS


@pytest.mark.parametrize("listener", ["plain", "ours", "others"])
@pytest.mark.parametrize("client", ["plain", "ours", "others"])
def test_only_ends_of_one_authority_link(
    ends: list[LLMDataDist], tmp_path: Path, caplog: pytest.LogCaptureFixture, listener: str, client: str
) -> None:
    files: dict[str, dict[str, str]] = {"plain": {}}
    for name in ("ours", "others"):
        authority(tmp_path, name)
        files[name] = secured(certificate(tmp_path, f"end-of-{name}", name))
    server, other = end_of(ends, 1, port=0, **files[listener]), end_of(ends, 2, **files[client])
    linked = other.link_clusters([cluster_info(1, port_of(server))], 5000)[0]
    assert linked is (S.LLM_SUCCESS if listener == client else S.LLM_LINK_FAILED)


def test_certificates_are_found_by_the_environment_and_renewed_ones_are_used(
    ends: list[LLMDataDist], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority(tmp_path, "ours")
    files = certificate(tmp_path, "end", "ours")
    for part, file in zip(("cert", "key", "ca"), files, strict=True):
        monkeypatch.setenv(channels.VARIABLES[part], str(file))
    prompt, decoder, third = end_of(ends, 1, port=0), end_of(ends, 2), end_of(ends, 3)
    assert decoder.link_clusters([cluster_info(1, port_of(prompt))], 5000)[0] is S.LLM_SUCCESS
    # the whole authority is replaced under both running ends: the old link lasts, a new one is made with the new files
    authority(tmp_path, "ours")
    certificate(tmp_path, "end", "ours")
    assert third.link_clusters([cluster_info(1, port_of(prompt))], 5000)[0] is S.LLM_SUCCESS
    decoder.check_link_status(1)


def test_certificates_that_cannot_be_used_stop_the_start(tmp_path: Path) -> None:
    authority(tmp_path, "ours")
    cert, key, ca = certificate(tmp_path, "end", "ours")
    (tmp_path / "empty").write_text("")
    end = LLMDataDist(LLMRole.MIX, 1)
    for settings, said in (
        ({"tls_cert": str(cert)}, "belay.TlsKey"),
        (secured((cert, key, tmp_path / "none")), "No such file"),
        (secured((cert, tmp_path / "empty", ca)), "belay.TlsKey"),
    ):
        with pytest.raises(ValueError, match=said):
            end.init(LLMConfig(**settings).generate_options())  # type: ignore[arg-type]
