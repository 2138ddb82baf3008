"""Forked worker processes, which answer questions while this process does other work.

They do not know what is asked, nor who asks.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock, Thread
from typing import ClassVar, Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Fork(Generic[Question, Answer]):
    """A forked process with a copy of this one's memory. It answers the latest question first.

    answer   computes an answer, in the forked process or, if that has died, in this one
    Messages to the process are (number, (question, can_wait)), or (number, None) to cancel a question. For each
    question it sends (number, None) when it starts on it, then (number, (answer,)).
    """

    # This process's ends of the pipes to all forks: each fork inherits those of the forks before it.
    _pipes: ClassVar[set[Connection]] = set()

    def __init__(self, answer: Callable[[Question], Answer]) -> None:
        context = multiprocessing.get_context("fork")
        self._answer, self._numbers = answer, count()
        self._open, self._answers = dict[int, Question](), dict[int, Answer]()
        self._started = set[int]()
        self._pipe, worker_end = context.Pipe()
        self._pipes.add(self._pipe)
        self.process = context.Process(target=self._work, args=(worker_end,), daemon=True)
        self.process.start()
        worker_end.close()

    def ask(self, question: Question, can_wait: bool = False) -> int:
        """Send a question; return its number, by which `answer` and `cancel` know it.

        can_wait   answer it after all other questions, later ones included
        """
        number = next(self._numbers)
        self._open[number] = question
        # If the process has died, `answer` finds that out.
        with suppress(ConnectionError):
            self._pipe.send((number, (question, can_wait)))
        return number

    def answer(self, number: int) -> Answer:
        """Wait for the answer to a question, which can be taken once."""
        try:
            while number not in self._answers:
                self._receive()
        except (EOFError, ConnectionError):
            return self._answer(self._open.pop(number))
        del self._open[number]
        return self._answers.pop(number)

    def cancel(self, number: int) -> bool:
        """Withdraw a question unless the process has started on it; return whether it was withdrawn."""
        with suppress(EOFError, ConnectionError):
            while self._pipe.poll():
                self._receive()
            if number in self._started:
                return False
            self._pipe.send((number, None))
        del self._open[number]
        return True

    def _receive(self) -> None:
        number, answer = pickle.loads(self._pipe.recv_bytes())
        self._started.add(number)
        # A question may be cancelled just as the process starts on it: its answer is dropped.
        if answer is not None and number in self._open:
            self._answers[number] = answer[0]

    def end(self, at_once: bool = False) -> None:
        """End the process, at once or after its current question. Other open questions are dropped."""
        self._pipes.discard(self._pipe)
        self._pipe.close()
        if at_once:
            self.process.terminate()
        self.process.join()

    def _work(self, connection: Connection) -> None:
        """Run in the forked process, until the other end of its pipe is closed."""
        # The asking process prints the same messages when it computes what a dead fork did not, or compiles the same.
        sys.stderr = open(os.devnull, "w")
        # The parent's handlers give it time to clean up on a signal; the fork ends at once, except on Ctrl-C.
        for number in signal.valid_signals() - {signal.SIGINT}:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        # A pipe counts as closed only once every inherited duplicate of its other end is closed too.
        for pipe in self._pipes:
            pipe.close()
        _Worker(connection, self._answer).run()


class _Worker(Generic[Question, Answer]):
    """The forked process's side: answers the questions that arrive on `connection`.

    Pipes hold little, so one thread receives and one sends: the asking process never waits for an answer to be
    computed before it can send its next question.
    """

    def __init__(self, connection: Connection, answer: Callable[[Question], Answer]) -> None:
        self._connection, self._answer = connection, answer
        self._messages = SimpleQueue[tuple[int, tuple[Question, bool] | None] | None]()
        self._receiving = Lock()
        self._open = list[tuple[int, Question]]()

    def run(self) -> None:
        """Answer questions, the latest first, until the connection is closed."""
        Thread(target=self._receive, daemon=True).start()
        # The asking process may be killed meanwhile; Ctrl-C reaches all processes, and the asking one reports it.
        with suppress(ConnectionError, KeyboardInterrupt), ThreadPoolExecutor(1) as sender:

            def send(number: int, answer: tuple[Answer] | None) -> None:
                sender.submit(self._connection.send_bytes, pickle.dumps((number, answer)))

            while (asked := self._next()) is not None:
                number, question = asked
                send(number, None)
                send(number, (self._answer(question),))

    def _receive(self) -> None:
        """Move messages from the connection to the queue, then None."""
        with suppress(EOFError, ConnectionError):
            while self._connection.poll(None):
                with self._receiving:
                    self._messages.put(self._connection.recv())
        self._messages.put(None)

    def _next(self) -> tuple[int, Question] | None:
        """The number and text of the next question; None once the connection is closed."""
        # All messages are read first, as the latest question is answered first.
        while not self._open or self._has_messages():
            message = self._messages.get()
            if message is None:
                return None
            number, asked = message
            if asked is None:
                self._open = [one for one in self._open if one[0] != number]
            else:
                question, can_wait = asked
                self._open.insert(0 if can_wait else len(self._open), (number, question))
        return self._open.pop()

    def _has_messages(self) -> bool:
        with self._receiving:
            return self._connection.poll() or not self._messages.empty()
