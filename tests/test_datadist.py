"""Links between clusters on loopback: made, refused, broken, mended, and blocks moved over them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from belay.agents.common.log import JsonLines
from belay.agents.datadist import (
    BlocksCacheKey,
    CacheDesc,
    DataType,
    LLMClusterInfo,
    LLMConfig,
    LLMDataDist,
    LLMException,
    LLMRole,
    LLMStatusCode,
    Placement,
    frames,
)
from belay.agents.datadist.caches import Registry
from belay.agents.datadist.links import MAX_LINKS, Links
from tests.link_ends import cluster_info, end_of, ends, port_of

pytestmark = pytest.mark.real_time

__all__ = ["ends"]

S = LLMStatusCode


def desc(tensors: int = 2, blocks: int = 8, width: int = 16) -> CacheDesc:
    return CacheDesc(tensors, [blocks, width], DataType.DT_FLOAT16, Placement.HOST)


def filled(tensors: int = 2, blocks: int = 8, width: int = 16) -> list[bytearray]:
    return [bytearray(b"".join(bytes([16 * t + b + 1]) * (2 * width) for b in range(blocks))) for t in range(tensors)]


def linked(ends: list[LLMDataDist]) -> tuple[LLMDataDist, LLMDataDist, list[bytearray], LLMClusterInfo]:
    prompt, decoder = end_of(ends, 1, LLMRole.PROMPT, port=0), end_of(ends, 2)
    memory = filled()
    prompt.cache_manager.register_blocks_cache(desc(), memory, BlocksCacheKey(1))
    info = cluster_info(1, port_of(prompt))
    assert decoder.link_clusters([info]) == (S.LLM_SUCCESS, [S.LLM_SUCCESS])
    return prompt, decoder, memory, info


def test_blocks_are_pulled_as_they_were_registered(ends: list[LLMDataDist]) -> None:
    _, decoder, memory, _ = linked(ends)
    mine = [bytearray(8 * 32) for _ in range(2)]
    cache = decoder.cache_manager.register_blocks_cache(desc(), mine)
    decoder.cache_manager.pull_blocks(BlocksCacheKey(1), cache, [3, 4, 0], [0, 1, 7])
    for tensor, source in zip(mine, memory, strict=True):
        assert tensor[:64] == source[96:160]
        assert tensor[224:] == source[:32]
        assert not any(tensor[64:224])


def test_a_layer_range_moves_only_its_tensors(ends: list[LLMDataDist]) -> None:
    prompt, decoder = end_of(ends, 1, LLMRole.PROMPT, port=0), end_of(ends, 2)
    memory = filled(tensors=6)
    prompt.cache_manager.register_blocks_cache(desc(6), memory, BlocksCacheKey(1, 7))
    decoder.link_clusters([cluster_info(1, port_of(prompt))])
    mine = [bytearray(8 * 32) for _ in range(2)]
    cache = decoder.cache_manager.register_blocks_cache(desc(2), mine)
    decoder.cache_manager.pull_blocks(
        BlocksCacheKey(1, 7), cache, [0], [0], src_layer_range=range(2, 3), dst_layer_range=range(0, 1)
    )
    assert [bytes(tensor[:32]) for tensor in mine] == [bytes(memory[4][:32]), bytes(memory[5][:32])]


def test_raw_host_addresses_serve_as_memory(ends: list[LLMDataDist]) -> None:
    _, decoder, memory, _ = linked(ends)
    buffers = [(ctypes.c_char * 256)() for _ in range(2)]
    cache = decoder.cache_manager.register_blocks_cache(desc(), [ctypes.addressof(buffer) for buffer in buffers])
    decoder.cache_manager.pull_blocks(BlocksCacheKey(1), cache, list(range(8)), list(range(8)))
    assert [buffer.raw for buffer in buffers] == [bytes(tensor) for tensor in memory]


def test_the_listening_side_reads_and_writes_over_the_same_link(ends: list[LLMDataDist]) -> None:
    prompt, decoder = end_of(ends, 1, LLMRole.PROMPT, port=0), end_of(ends, 2)
    far = filled()
    decoder.cache_manager.register_blocks_cache(desc(), far, BlocksCacheKey(2))
    decoder.link_clusters([cluster_info(1, port_of(prompt))])
    mine = [bytearray(b"\xff" * 256) for _ in range(2)]
    cache = prompt.cache_manager.register_blocks_cache(desc(), mine)
    wait_until(lambda: 2 in prompt.linked())
    prompt.cache_manager.push_blocks(BlocksCacheKey(2), cache, [0], [5])
    assert all(tensor[160:192] == b"\xff" * 32 and tensor[128:160] != b"\xff" * 32 for tensor in far)


def test_both_sides_move_megabytes_at_once(ends: list[LLMDataDist]) -> None:
    shape = CacheDesc(1, [64, 1 << 18], DataType.DT_INT8, Placement.HOST)  # 16 MiB
    prompt, decoder = (
        end_of(ends, 1, LLMRole.PROMPT, port=0, sync_kv_timeout=30_000),
        end_of(ends, 2, sync_kv_timeout=30_000),
    )
    content = [bytearray(i % 251 for i in range(1 << 18)) * 64, bytearray(i % 239 for i in range(1 << 18)) * 64]
    prompt.cache_manager.register_blocks_cache(shape, [content[0]], BlocksCacheKey(1))
    decoder.cache_manager.register_blocks_cache(shape, [content[1]], BlocksCacheKey(2))
    decoder.link_clusters([cluster_info(1, port_of(prompt))])
    wait_until(lambda: 2 in prompt.linked())
    got = [bytearray(16 << 20), bytearray(16 << 20)]
    every = list(range(64))

    def pull(end: LLMDataDist, number: int) -> None:
        cache = end.cache_manager.register_blocks_cache(shape, [got[number - 1]])
        end.cache_manager.pull_blocks(BlocksCacheKey(number), cache, every, every)

    threads = [threading.Thread(target=pull, args=(decoder, 1)), threading.Thread(target=pull, args=(prompt, 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == content


def test_memory_registered_after_the_link_cannot_be_reached(ends: list[LLMDataDist]) -> None:
    prompt, decoder, _, info = linked(ends)
    prompt.cache_manager.register_blocks_cache(desc(), filled(), BlocksCacheKey(1, 9))
    cache = decoder.cache_manager.register_blocks_cache(desc(), filled())
    with pytest.raises(LLMException) as caught:
        decoder.cache_manager.pull_blocks(BlocksCacheKey(1, 9), cache, [0], [0])
    assert caught.value.status_code is S.LLM_KV_CACHE_NOT_EXIST
    decoder.unlink_clusters([info])
    decoder.link_clusters([info])
    decoder.cache_manager.pull_blocks(BlocksCacheKey(1, 9), cache, [0], [0])


def test_local_caches_stay_local(ends: list[LLMDataDist]) -> None:
    prompt, decoder = end_of(ends, 1, LLMRole.PROMPT, port=0), end_of(ends, 2)
    prompt.cache_manager.register_blocks_cache(desc(), filled(), BlocksCacheKey(1), remote_accessible=False)
    decoder.link_clusters([cluster_info(1, port_of(prompt))])
    cache = decoder.cache_manager.register_blocks_cache(desc(), filled())
    with pytest.raises(LLMException, match="was not registered"):
        decoder.cache_manager.pull_blocks(BlocksCacheKey(1), cache, [0], [0])


def test_each_cluster_has_its_own_result_in_order(ends: list[LLMDataDist]) -> None:
    first, second = end_of(ends, 1, port=0), end_of(ends, 3, port=0)
    client = end_of(ends, 2)
    with contextlib.closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))
        refused = closed.getsockname()[1]
        result = client.link_clusters(
            (
                cluster_info(1, port_of(first)),
                cluster_info(9, refused),
                cluster_info(3, port_of(second)),
                cluster_info(8, port_of(second)),
            )
        )
    assert result == (S.LLM_LINK_FAILED, [S.LLM_SUCCESS, S.LLM_LINK_FAILED, S.LLM_SUCCESS, S.LLM_LINK_FAILED])
    assert sorted(client.linked()) == [1, 3]


def test_a_silent_peer_costs_only_its_own_link_the_time_out(ends: list[LLMDataDist]) -> None:
    servers = [end_of(ends, 10 + i, port=0) for i in range(8)]
    client = end_of(ends, 2)
    with contextlib.closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        infos = [cluster_info(s.cluster_id, port_of(s)) for s in servers]
        began = time.monotonic()
        overall, codes = client.link_clusters([cluster_info(99, silent.getsockname()[1]), *infos], 2000)
        took = time.monotonic() - began
    assert overall is S.LLM_WAIT_PROC_TIMEOUT
    assert codes == [S.LLM_WAIT_PROC_TIMEOUT, *[S.LLM_SUCCESS] * 8]
    assert took < 15


def test_a_second_link_to_the_same_cluster_is_reported_as_linked(ends: list[LLMDataDist]) -> None:
    _, decoder, _, info = linked(ends)
    assert decoder.link_clusters([info]) == (S.LLM_ALREADY_LINK, [S.LLM_ALREADY_LINK])
    assert decoder.linked() == {1: None}


def test_a_cluster_named_twice_in_a_call_is_linked_once(ends: list[LLMDataDist]) -> None:
    prompt, decoder = end_of(ends, 1, port=0), end_of(ends, 2)
    info = cluster_info(1, port_of(prompt))
    assert decoder.link_clusters([info, info])[1] == [S.LLM_SUCCESS, S.LLM_PROCESSING_LINK]


def test_more_links_than_may_be_are_refused_whole(ends: list[LLMDataDist]) -> None:
    prompt, decoder = end_of(ends, 1, port=0), end_of(ends, 2)
    port = port_of(prompt)
    infos = [cluster_info(number + 10, port) for number in range(MAX_LINKS + 1)]
    overall, codes = decoder.link_clusters(infos)
    assert overall is S.LLM_CLUSTER_NUM_EXCEED_LIMIT
    assert codes == [S.LLM_CLUSTER_NUM_EXCEED_LIMIT] * 513
    assert decoder.linked() == {}


def test_a_link_that_is_being_made_or_ended_is_in_hand(ends: list[LLMDataDist]) -> None:
    client = end_of(ends, 2)
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as slow:
        info = cluster_info(1, silent.getsockname()[1])
        linking = threading.Thread(target=client.link_clusters, args=([info], 1500))
        linking.start()
        held, _ = silent.accept()  # its client waits for an answer now
        assert client.link_clusters([info])[1] == [S.LLM_PROCESSING_LINK]
        assert client.unlink_clusters([info])[1] == [S.LLM_PROCESSING_LINK]
        linking.join()
        held.close()

        def answer_hello() -> None:
            sock, _ = slow.accept()
            with sock:
                sock.recv(4096)
                welcome = frames.encode(frames.Welcome(3, []))
                sock.sendall(frames.head(frames.Kind.ANSWER, 1, len(welcome)) + welcome)
                while sock.recv(4096):  # takes what it receives, and never answers
                    asked.set()

        asked = threading.Event()
        threading.Thread(target=answer_hello, daemon=True).start()
        other = cluster_info(3, slow.getsockname()[1])
        assert client.link_clusters([other])[0] is S.LLM_SUCCESS
        results: list[object] = []
        ending = threading.Thread(target=lambda: results.append(client.unlink_clusters([other], 700)[1]))
        ending.start()
        assert asked.wait(5)
        wait_until(lambda: client.linked() == {})
        assert client.link_clusters([other])[1] == [S.LLM_PROCESSING_LINK]
        assert client.unlink_clusters([other])[1] == [S.LLM_PROCESSING_LINK]
        ending.join()
        assert results == [[S.LLM_NOTIFY_PROMPT_UNLINK_FAILED]]
        assert client.unlink_clusters([other])[1] == [S.LLM_NOT_YET_LINK]


def test_two_that_link_to_each_other_at_once_share_one_link(ends: list[LLMDataDist]) -> None:
    one, two = end_of(ends, 1, port=0), end_of(ends, 2, port=0)
    to_one, to_two = cluster_info(1, port_of(one)), cluster_info(2, port_of(two))
    for _ in range(50):
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(lambda pair: pair[0].link_clusters([pair[1]])[0], ((one, to_two), (two, to_one))))
        assert S.LLM_SUCCESS in results
        assert set(results) <= {S.LLM_SUCCESS, S.LLM_ALREADY_LINK, S.LLM_PROCESSING_LINK}
        wait_until(lambda: one.linked() == {2: None} and two.linked() == {1: None})
        one.check_link_status(2)
        two.check_link_status(1)
        assert one.unlink_clusters([to_two])[0] is S.LLM_SUCCESS
        wait_until(lambda: two.linked() == {})


def test_all_tries_of_a_link_fit_into_the_total_time(ends: list[LLMDataDist]) -> None:
    client = end_of(ends, 2, link_total_time=1, link_retry_count=100)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        assert client.link_clusters([cluster_info(1, silent.getsockname()[1])], 30_000)[0] is S.LLM_WAIT_PROC_TIMEOUT
        assert 0.9 < time.monotonic() - began < 25


def test_unlinking_ends_both_sides(ends: list[LLMDataDist]) -> None:
    prompt, decoder, _, info = linked(ends)
    wait_until(lambda: 2 in prompt.linked())
    assert decoder.unlink_clusters([info]) == (S.LLM_SUCCESS, [S.LLM_SUCCESS])
    assert decoder.linked() == {}
    wait_until(lambda: prompt.linked() == {})
    assert decoder.unlink_clusters([info]) == (S.LLM_NOT_YET_LINK, [S.LLM_NOT_YET_LINK])
    with pytest.raises(LLMException) as caught:
        decoder.check_link_status(1)
    assert caught.value.status_code is S.LLM_NOT_YET_LINK


def test_a_forced_unlink_leaves_the_far_end_broken_until_it_is_cleaned_too(ends: list[LLMDataDist]) -> None:
    prompt, decoder, _, info = linked(ends)
    wait_until(lambda: 2 in prompt.linked())
    assert decoder.unlink_clusters([info], force=True)[0] is S.LLM_SUCCESS
    wait_until(lambda: prompt.linked().get(2) is not None)
    with pytest.raises(LLMException, match="broken"):
        prompt.check_link_status(2)
    far = LLMClusterInfo()
    far.remote_cluster_id = 2
    assert prompt.unlink_clusters([far], force=True)[0] is S.LLM_SUCCESS
    assert prompt.linked() == {}


def test_a_dead_prompt_is_noticed_and_linked_again_after_its_return(ends: list[LLMDataDist]) -> None:
    prompt, decoder, _, info = linked(ends)
    decoder.check_link_status(1)
    port = port_of(prompt)
    prompt.finalize()
    wait_until(lambda: decoder.linked()[1] is not None)
    with pytest.raises(LLMException, match="broken"):
        decoder.check_link_status(1)
    again = LLMDataDist(LLMRole.PROMPT, 1)
    again.init({"llm.listenIpInfo": f"127.0.0.1:{port}"})
    ends.append(again)
    assert decoder.link_clusters([info])[0] is S.LLM_SUCCESS
    decoder.check_link_status(1)


def test_a_restarted_client_replaces_its_old_link(ends: list[LLMDataDist]) -> None:
    prompt, _, _, info = linked(ends)
    again = end_of(ends, 2)
    assert again.link_clusters([info])[0] is S.LLM_SUCCESS
    again.check_link_status(1)
    wait_until(lambda: prompt.linked() == {2: None})


def test_strangers_and_half_made_links_do_no_harm(ends: list[LLMDataDist]) -> None:
    prompt, decoder, _, _ = linked(ends)
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"BKVL\x01\x01" + b"\xff" * 10, b""):
        with contextlib.closing(socket.create_connection(prompt.listening[0])) as stranger:
            stranger.sendall(data)
            stranger.settimeout(5)
            # a server that hung up already may have sent a reset
            with contextlib.suppress(OSError):
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(64) == b""
    decoder.check_link_status(1)


@pytest.mark.parametrize(
    ("clusters", "timeout", "error"),
    [
        (None, 3000, TypeError),
        ("abc", 3000, TypeError),
        ([object()], 3000, TypeError),
        ([cluster_info(1, 1)], "3000", TypeError),
        ([cluster_info(1, 1)], 1.5, TypeError),
        ([cluster_info(1, 1)], True, TypeError),
        ([cluster_info(1, 1)], 0, ValueError),
        ([cluster_info(1, 1)], -1, ValueError),
        ([cluster_info(1, 1)], 2**31, ValueError),
        ([], 3000, ValueError),
        ([LLMClusterInfo()], 3000, ValueError),
    ],
)
def test_bad_arguments_raise(
    ends: list[LLMDataDist], clusters: object, timeout: object, error: type[Exception]
) -> None:
    client = end_of(ends, 2)
    with pytest.raises(error):
        client.link_clusters(clusters, timeout)  # type: ignore[arg-type]


def test_a_local_address_is_needed_without_communication_resources(ends: list[LLMDataDist]) -> None:
    info = LLMClusterInfo()
    info.remote_cluster_id = 1
    info.append_remote_ip_info("127.0.0.1", 9)
    with pytest.raises(ValueError, match="append_local_ip_info"):
        end_of(ends, 2).link_clusters([info])
    assert end_of(ends, 3, local_comm_res="{}").link_clusters([info], 500)[0] is S.LLM_LINK_FAILED


def test_a_short_time_out_is_warned_of(ends: list[LLMDataDist], caplog: pytest.LogCaptureFixture) -> None:
    prompt, client = end_of(ends, 1, port=0), end_of(ends, 2)
    with caplog.at_level(logging.WARNING, logger="belay.datadist"):
        client.link_clusters([cluster_info(1, port_of(prompt))], 199)
        assert "below 200 ms" in caplog.text
        caplog.clear()
        client.link_clusters([cluster_info(1, port_of(prompt))], 200)
        assert caplog.text == ""


def test_a_link_that_fails_is_logged_with_its_cluster_and_cause(
    ends: list[LLMDataDist], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="belay.datadist"):
        end_of(ends, 2).link_clusters([cluster_info(7, 1)])
    line = json.loads(JsonLines().format(caplog.records[-1]))
    assert (line["message"], line["cluster"], line["address"]) == ("a link failed", 7, "127.0.0.1:1")
    assert "Errno 111" in line["error"]


def test_nothing_works_before_init_or_after_the_end() -> None:
    end = LLMDataDist(LLMRole.DECODER, 2)
    with pytest.raises(LLMException, match="call init"):
        end.link_clusters([cluster_info(1, 1)])
    end.init({})
    end.finalize()
    end.finalize()
    with pytest.raises(LLMException, match="call init"):
        end.check_link_status(1)


def test_the_role_changes_only_when_it_may(ends: list[LLMDataDist]) -> None:
    fixed = end_of(ends, 4, enable_switch_role=False)
    with pytest.raises(LLMException) as caught:
        fixed.switch_role(LLMRole.PROMPT)
    assert caught.value.status_code is S.LLM_FEATURE_NOT_ENABLED
    prompt, other = end_of(ends, 5, port=0), end_of(ends, 6)
    info = cluster_info(5, port_of(prompt))
    other.link_clusters([info])
    with pytest.raises(LLMException) as caught:
        other.switch_role(LLMRole.PROMPT)
    assert caught.value.status_code is S.LLM_EXIST_LINK
    other.unlink_clusters([info])
    other.switch_role(LLMRole.PROMPT, {"llm.listenIpInfo": "127.0.0.1:0"})
    assert other.role is LLMRole.PROMPT
    back = cluster_info(6, port_of(other))
    wait_until(lambda: prompt.linked() == {})
    assert prompt.link_clusters([back])[0] is S.LLM_SUCCESS


def test_addresses_are_kept_as_the_native_library_takes_them() -> None:
    info = LLMClusterInfo()
    info.append_remote_ip_info("10.0.0.1", 26000)
    info.append_local_ip_info(0x0100007F, 1)
    assert info.remote_ip_info_list == [(0x0100000A, 26000)]
    assert info.local_ip_info_list == [(0x0100007F, 1)]
    with pytest.raises(RuntimeError, match="cannot be read"):
        info.append_remote_ip_info("ten", 1)
    for port, error in ((65536, ValueError), (-1, ValueError), ("1", TypeError)):
        with pytest.raises(error):
            info.append_remote_ip_info("10.0.0.1", port)  # type: ignore[arg-type]
    for number, error in ((-1, ValueError), (2**64, ValueError), ("1", TypeError)):
        with pytest.raises(error):
            info.remote_cluster_id = number  # type: ignore[assignment]


def test_options_are_text_and_checked() -> None:
    config = LLMConfig(device_id=3, listen_ip_info="10.0.0.1:26000", sync_kv_timeout=500, link_retry_count=2)
    assert config.generate_options() == {
        "ge.exec.deviceId": "3",
        "llm.listenIpInfo": "10.0.0.1:26000",
        "llm.SyncKvCacheWaitTime": "500",
        "llm.LinkRetryCount": "2",
    }
    listed = LLMConfig(device_id=[3], sync_kv_timeout="500", link_total_time=20)
    assert listed.generate_options() == {
        "ge.exec.deviceId": "3",
        "llm.SyncKvCacheWaitTime": "500",
        "llm.LinkTotalTime": "20",
    }
    for unfit, error in (
        (LLMConfig(device_id=[1, 2]), ValueError),
        (LLMConfig(device_id="1"), TypeError),  # type: ignore[arg-type]
        (LLMConfig(sync_kv_timeout="soon"), TypeError),
        (LLMConfig(sync_kv_timeout="0"), ValueError),
        (LLMConfig(link_total_time=2**32), ValueError),
    ):
        with pytest.raises(error):
            unfit.generate_options()
    for bad in (LLMConfig(link_retry_count=0), LLMConfig(link_retry_count=101), LLMConfig(listen_ip_info="10.0.0.1")):
        with pytest.raises(ValueError):
            bad.generate_options()
    with pytest.raises(ValueError, match=r"llm\.LinkRetryCount"):
        LLMDataDist(LLMRole.MIX, 1).init({"llm.LinkRetryCount": "x"})


def test_memory_that_does_not_fit_is_refused(ends: list[LLMDataDist]) -> None:
    manager = end_of(ends, 1).cache_manager
    with pytest.raises(ValueError, match="needs 256 bytes"):
        manager.register_blocks_cache(desc(), [bytearray(255), bytearray(256)])
    with pytest.raises(TypeError, match="writable"):
        manager.register_blocks_cache(desc(), [bytes(256), bytes(256)])
    with pytest.raises(ValueError, match="2 tensors"):
        manager.register_blocks_cache(desc(), [bytearray(256)])
    manager.register_blocks_cache(desc(), filled(), BlocksCacheKey(1))
    with pytest.raises(ValueError, match="registered already"):
        manager.register_blocks_cache(desc(), filled(), BlocksCacheKey(1))


def test_blocks_outside_a_cache_are_refused_on_either_side(ends: list[LLMDataDist]) -> None:
    _, decoder, _, _ = linked(ends)
    cache = decoder.cache_manager.register_blocks_cache(desc(blocks=4), filled(blocks=4))
    for source, target in (([8], [0]), ([0], [4]), ([0, 1], [0]), ([], [])):
        with pytest.raises(ValueError):
            decoder.cache_manager.pull_blocks(BlocksCacheKey(1), cache, source, target)
    decoder.check_link_status(1)


def wait_until(condition: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def test_a_frame_nested_too_deep_to_read_is_a_bad_one() -> None:
    body = b'{"cluster":1,"peer":2,"role":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(frames.BadFrame, match="Hello"):
        frames.decode(body, frames.Hello)


@pytest.mark.parametrize(("own", "code"), [(2, S.LLM_PROCESSING_LINK), (9, None)])
def test_of_two_links_made_at_once_that_of_the_lower_number_stays(own: int, code: S | None) -> None:
    links = Links(own, int(LLMRole.MIX), Registry(), 1, 10.0)
    hello = frames.Hello(5, own, int(LLMRole.MIX))
    assert links._refusal(hello) is None
    links._linking.add(5)  # this side is just linking to it as well
    assert links._refusal(hello) is code


def test_what_one_side_has_done_holds_on_the_other_at_once(ends: list[LLMDataDist]) -> None:
    """The client has its result before the server has read the client's last frame; so for the end of a link."""
    prompt, decoder = end_of(ends, 1, LLMRole.PROMPT, port=0), end_of(ends, 2)
    cache = prompt.cache_manager.register_blocks_cache(desc(), filled())
    decoder.cache_manager.register_blocks_cache(desc(), filled(), BlocksCacheKey(2))
    for _ in range(20):
        info = cluster_info(1, port_of(prompt))
        assert decoder.link_clusters([info])[0] is S.LLM_SUCCESS
        prompt.cache_manager.push_blocks(BlocksCacheKey(2), cache, [0], [0])
        assert decoder.unlink_clusters([info])[0] is S.LLM_SUCCESS
        assert prompt.linked() == {}
