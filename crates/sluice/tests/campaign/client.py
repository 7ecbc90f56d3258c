"""A client of one volume that knows what must be on it, over NBD (libnbd) or vhost-user-blk (the few messages below).

Commands come on standard input, one word per line; events go to standard output:

    go        connect and write with several requests in flight   "acked N" now and then, "refused ERRNO" once, "gone"
    force     force every write from now on, where the protocol has forced writes, and flush no more
    stop      stop writing and wait for what is in flight         "stopped"
    check     connect and read everything: each block is at least as new as the last write that was acknowledged
    check-cut the same where the disk has lost its cache: at least as new as what a flush or a forced write has covered
    mark      "marked": what is acknowledged in later lines was acknowledged after this
    (end)     exit

Each write has a number. A block repeats its place and its number, so a block of another place and a torn sector show.
"""

import json
import os
import random
import select
import socket
import struct
import sys
import time

BLOCK = 4096
SECTOR = 512
DEPTH = 8
RECORD_MAX = 4
LONG_S = 60
VHOST_IOERR = 5


class Gone(Exception):
    """The connection has ended."""


class Nbd:
    """Over NBD, by libnbd. Requests are known by libnbd's cookies."""

    forced = True

    def __init__(self, path, export):
        import nbd

        self.nbd = nbd
        self.handle = nbd.NBD()
        self.handle.set_export_name(export)
        self.handle.set_strict_mode(0)
        try:
            self.handle.connect_unix(path)
        except nbd.Error as error:
            raise Gone(str(error))

    def write(self, offset, data, forced):
        buffer = self.nbd.Buffer.from_bytearray(bytearray(data))
        return self.ask(lambda: self.handle.aio_pwrite(buffer, offset, flags=self.nbd.CMD_FLAG_FUA if forced else 0))

    def flush(self):
        return self.ask(self.handle.aio_flush)

    def ask(self, call):
        try:
            return call()
        except self.nbd.Error as error:
            raise Gone(str(error))

    def answers(self, requests, timeout_ms):
        """Those of the requests that are answered, each with its error, 0 for none."""
        try:
            self.handle.poll(timeout_ms)
        except self.nbd.Error:
            pass
        answers = []
        for request in requests:
            try:
                if self.handle.aio_command_completed(request):
                    answers.append((request, 0))
            except self.nbd.Error as error:
                if not self.is_gone():
                    answers.append((request, error.errnum or 5))
        return answers

    def is_gone(self):
        return self.handle.aio_is_dead() or self.handle.aio_is_closed()

    def read(self, offset, len_bytes):
        return bytes(self.handle.pread(len_bytes, offset))

    def close(self):
        self.handle = None


class Vhost:
    """Over vhost-user: one queue in a memory of one region. A request is known by its slot of three descriptors."""

    forced = False
    RING = 64
    AVAIL, USED, HEADERS, DATA = 4096, 8192, 12288, 16384
    SLOT = RECORD_MAX * BLOCK
    MEMORY = DATA + DEPTH * SLOT
    FEATURES = 1 << 32 | 1 << 30 | 1 << 9
    REPLY_ACK = 1 << 3

    def __init__(self, path, _export):
        import mmap

        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LONG_S)
        try:
            self.socket.connect(path)
            memory = os.memfd_create("guest")
            os.ftruncate(memory, Vhost.MEMORY)
            self.memory = mmap.mmap(memory, Vhost.MEMORY)
            # Indices of rings are read and written whole; `struct` takes a byte at a time.
            self.words = memoryview(self.memory).cast("H")
            self.call, self.kick = os.eventfd(0), os.eventfd(0)
            self.start(memory)
            os.close(memory)
        except OSError as error:
            raise Gone(str(error))
        self.free, self.next_avail, self.next_used = list(range(DEPTH)), 0, 0
        self.gone = False

    def start(self, memory):
        self.send(3)
        offered = self.ask(1)
        assert offered & Vhost.FEATURES == Vhost.FEATURES, hex(offered)
        assert self.ask(15) & Vhost.REPLY_ACK
        self.send(16, struct.pack("<Q", Vhost.REPLY_ACK))
        self.send(2, struct.pack("<Q", Vhost.FEATURES))
        self.confirm(5, struct.pack("<IIQQQQ", 1, 0, 0, Vhost.MEMORY, 0, 0), [memory])
        self.confirm(8, struct.pack("<II", 0, Vhost.RING))
        self.confirm(10, struct.pack("<II", 0, 0))
        self.confirm(9, struct.pack("<IIQQQQ", 0, 0, 0, Vhost.USED, Vhost.AVAIL, 0))
        self.confirm(13, struct.pack("<Q", 0), [self.call])
        self.confirm(12, struct.pack("<Q", 0), [self.kick])
        self.confirm(18, struct.pack("<II", 0, 1))

    def send(self, request, payload=b"", files=(), flags=1):
        header = struct.pack("<III", request, flags, len(payload))
        socket.send_fds(self.socket, [header + payload], list(files))

    def ask(self, request):
        self.send(request)
        return self.reply(request)

    def confirm(self, request, payload, files=()):
        self.send(request, payload, files, 1 | 8)
        assert self.reply(request) == 0, request

    def reply(self, request):
        answer = b""
        while len(answer) < 20:
            part = self.socket.recv(20 - len(answer))
            if not part:
                raise Gone("the back end has closed")
            answer += part
        assert struct.unpack_from("<I", answer)[0] == request
        return struct.unpack_from("<Q", answer, 12)[0]

    def write(self, offset, data, _forced):
        return self.submit(1, offset, data, len(data), 0)

    def flush(self):
        return self.submit(4, 0, b"", 0, 0)

    def submit(self, kind, offset, data, len_bytes, device_writes):
        slot = self.free.pop()
        head, header, place = 3 * slot, Vhost.HEADERS + 64 * slot, Vhost.DATA + Vhost.SLOT * slot
        struct.pack_into("<IIQ", self.memory, header, kind, 0, offset // SECTOR)
        self.memory[header + 32] = 0xFF
        self.memory[place : place + len(data)] = data
        self.describe(head, header, 16, 1, head + 1 if len_bytes else head + 2)
        self.describe(head + 1, place, len_bytes, 1 | device_writes, head + 2)
        self.describe(head + 2, header + 32, 1, 2, 0)
        self.words[Vhost.AVAIL // 2 + 2 + self.next_avail % Vhost.RING] = head
        self.next_avail = (self.next_avail + 1) % 65536
        self.words[Vhost.AVAIL // 2 + 1] = self.next_avail
        os.eventfd_write(self.kick, 1)
        return slot

    def describe(self, index, address, len_bytes, flags, following):
        struct.pack_into("<QIHH", self.memory, 16 * index, address, len_bytes, flags, following)

    def answers(self, _requests, timeout_ms):
        ready, _, _ = select.select([self.call, self.socket], [], [], timeout_ms / 1000)
        if self.call in ready:
            os.eventfd_read(self.call)
        if self.socket in ready:
            try:
                self.gone = not self.socket.recv(64)
            except OSError:
                self.gone = True
        # What was answered before the end counts.
        answers = []
        while self.next_used != self.words[Vhost.USED // 2 + 1]:
            head = struct.unpack_from("<I", self.memory, Vhost.USED + 4 + 8 * (self.next_used % Vhost.RING))[0]
            self.next_used = (self.next_used + 1) % 65536
            status = self.memory[Vhost.HEADERS + 64 * (head // 3) + 32]
            answers.append((head // 3, VHOST_IOERR if status else 0))
            self.free.append(head // 3)
        return answers

    def is_gone(self):
        return self.gone

    def read(self, offset, len_bytes):
        data, done = b"", 0
        while done < len_bytes:
            part = min(Vhost.SLOT, len_bytes - done)
            slot = self.submit(0, offset + done, b"", part, 2)
            answered = []
            while not answered:
                answered = self.answers([], 1000)
                if self.gone:
                    raise Gone("while reading")
            assert answered == [(slot, 0)], f"reading at {offset + done}: {answered}"
            place = Vhost.DATA + Vhost.SLOT * slot
            data, done = data + self.memory[place : place + part], done + part
        return data

    def close(self):
        self.socket.close()
        os.close(self.call)
        os.close(self.kick)
        self.words.release()
        self.memory.close()


def content(block, number):
    return struct.pack("<QQ", block, number) * (BLOCK // 16) if number else bytes(BLOCK)


class Client:
    def __init__(self, kind, path, export, size_bytes, seed):
        self.connect_to = lambda: {"nbd": Nbd, "vhost": Vhost}[kind](path, export)
        self.blocks = size_bytes // BLOCK
        # Per block the number of the newest write: that a flush has covered, that was acknowledged, that was sent.
        self.durable, self.acked, self.sent = ([0] * self.blocks for _ in range(3))
        self.random = random.Random(seed)
        self.number = self.acknowledged = self.forced = self.flushed = self.lost = 0
        self.refused = {}
        self.disk, self.writing, self.in_flight = None, False, {}
        self.forces_all = False

    def connect(self):
        if self.disk:
            self.disk.close()
        deadline = time.monotonic() + LONG_S
        while True:
            try:
                self.disk = self.connect_to()
                return
            except Gone:
                # polls: the place of a client before this one, which the daemon may not have seen go.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def submit(self):
        if not self.forces_all and self.random.randrange(12) == 0:
            self.in_flight[self.disk.flush()] = ("flush", list(self.acked))
            return
        count = self.random.randint(1, RECORD_MAX)
        first = self.random.randrange(self.blocks - count + 1)
        busy = {block for asked in self.in_flight.values() if asked[0] == "write" for block in asked[1]}
        blocks = range(first, first + count)
        if not busy.isdisjoint(blocks):
            return
        self.number += 1
        forced = self.disk.forced and (self.forces_all or self.random.randrange(6) == 0)
        # What is sent may happen, whatever becomes of the connection.
        for block in blocks:
            self.sent[block] = self.number
        data = b"".join(content(block, self.number) for block in blocks)
        self.in_flight[self.disk.write(first * BLOCK, data, forced)] = ("write", blocks, self.number, forced)

    def take(self, asked, error):
        if error:
            if error not in self.refused:
                say(f"refused {error}")
            self.refused[error] = self.refused.get(error, 0) + 1
        elif asked[0] == "flush":
            self.flushed += 1
            self.durable = [max(pair) for pair in zip(self.durable, asked[1])]
        else:
            self.acknowledged += 1
            self.forced += asked[3]
            for block in asked[1]:
                self.acked[block] = asked[2]
                if asked[3]:
                    self.durable[block] = asked[2]
            if self.acknowledged % 16 == 0:
                say(f"acked {self.acknowledged}")

    def turn(self):
        try:
            while self.writing and len(self.in_flight) < DEPTH:
                before = len(self.in_flight)
                self.submit()
                if len(self.in_flight) == before:
                    break
        except Gone:
            pass
        for request, error in self.disk.answers(list(self.in_flight), 20):
            self.take(self.in_flight.pop(request), error)
        if self.disk.is_gone():
            self.writing, self.in_flight = False, {}
            self.disk.close()
            self.disk = None
            say("gone")

    def stop(self):
        self.writing = False
        deadline = time.monotonic() + LONG_S
        while self.in_flight:
            assert time.monotonic() < deadline, f"not answered: {self.in_flight}"
            self.turn()
        say("stopped")

    def check(self, least):
        self.connect()
        disk = self.disk.read(0, self.blocks * BLOCK)
        for block in range(self.blocks):
            bad = None
            for start in range(0, BLOCK, SECTOR):
                found = disk[block * BLOCK + start : block * BLOCK + start + SECTOR]
                number = struct.unpack_from("<Q", found, 8)[0]
                if found != content(block, number)[:SECTOR]:
                    bad = f"sector {start // SECTOR} is none of this block's"
                elif not least[block] <= number <= self.sent[block]:
                    bad = f"write {number}, not from {least[block]} to {self.sent[block]}"
            if bad:
                self.lost += 1
                sys.stderr.write(f"block {block}: {bad}\n")
            elif least is self.durable:
                # What is there without a cache is on the disk.
                self.acked[block] = self.durable[block] = number
            else:
                # What has been read must stay.
                self.acked[block] = number
        self.disk.close()
        self.disk = None
        counts = ("acknowledged", "forced", "flushed", "lost")
        report = {name: getattr(self, name) for name in counts} | {"refused": sum(self.refused.values())}
        say("checked " + json.dumps(report))

    def obey(self, command):
        if command == "go":
            self.connect()
            self.writing, self.forces_all = True, False
        elif command == "force":
            self.forces_all = True
        elif command == "stop":
            self.stop()
        elif command == "mark":
            say("marked")
        elif command == "check":
            self.check(self.acked)
        elif command == "check-cut":
            self.check(self.durable)
        else:
            raise ValueError(command)


def say(line):
    print(line, flush=True)


def main():
    kind, path, export, size_bytes, seed = sys.argv[1:]
    client = Client(kind, path, export, int(size_bytes), int(seed))
    while True:
        idle = None if client.disk is None else 0
        if select.select([sys.stdin], [], [], idle)[0]:
            command = sys.stdin.buffer.raw.readline()
            if not command:
                return
            client.obey(command.decode().strip())
        if client.disk:
            client.turn()


main()
