"""Forked worker processes, which answer questions while this process goes on.

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
    """A forked process, which has all that this one has when it begins; it answers its latest question first.

    answer   computes an answer: in the forked process, or here if that has died
    Messages to it are (number, (question, whether it can wait)), or (number, None) to give a question up. For each
    question it sends (number, None) as it begins with it, then (number, (answer,)).
    """

    # This process's ends of the pipes to all of them: a forked process inherits these too.
    _ends: ClassVar[set[Connection]] = set()

    def __init__(self, answer: Callable[[Question], Answer]) -> None:
        context = multiprocessing.get_context("fork")
        self._answer, self._numbers = answer, count()
        self._asked, self._answers = dict[int, Question](), dict[int, Answer]()
        self._begun = set[int]()
        self._end, theirs = context.Pipe()
        self._ends.add(self._end)
        self.process = context.Process(target=self._serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, question: Question, can_wait: bool = False) -> int:
        """Ask a question; gives the number by which its answer can be had.

        can_wait   whether all other questions are answered first, even later ones
        """
        number = next(self._numbers)
        self._asked[number] = question
        # If the process has died, `answer` finds that out.
        with suppress(ConnectionError):
            self._end.send((number, (question, can_wait)))
        return number

    def answer(self, number: int) -> Answer:
        """Wait for the answer to a question; each is given once."""
        try:
            while number not in self._answers:
                self._hear()
        except (EOFError, ConnectionError):
            return self._answer(self._asked.pop(number))
        del self._asked[number]
        return self._answers.pop(number)

    def give_up(self, number: int) -> bool:
        """Withdraw a question, unless the process has begun with it; whether that was in time."""
        with suppress(EOFError, ConnectionError):
            while self._end.poll():
                self._hear()
            if number in self._begun:
                return False
            self._end.send((number, None))
        del self._asked[number]
        return True

    def _hear(self) -> None:
        number, answer = pickle.loads(self._end.recv_bytes())
        self._begun.add(number)
        # Nobody waits for the answer to a question that was withdrawn just as it was begun.
        if answer is not None and number in self._asked:
            self._answers[number] = answer[0]

    def end(self, at_once: bool = False) -> None:
        """End the process: at once, or after the question that it is working on. Other open questions are dropped."""
        self._ends.discard(self._end)
        self._end.close()
        if at_once:
            self.process.terminate()
        self.process.join()

    def _serve(self, connection: Connection) -> None:
        """The main loop of the forked process, until its pipe is closed at the other end."""
        # The asking process says the same, where it computes what this one died of, or compiles what this one does too.
        sys.stderr = open(os.devnull, "w")
        # What asks the other process to end, and leaves it time to, ends this one, but for Ctrl-C.
        for asking in signal.valid_signals() - {signal.SIGINT}:
            if callable(signal.getsignal(asking)):
                signal.signal(asking, signal.SIG_DFL)
        # As long as an inherited duplicate of the other end is open, that it was closed is not seen.
        for end in self._ends:
            end.close()
        heard, hearing = SimpleQueue[tuple[int, tuple[Question, bool] | None] | None](), Lock()

        def listen() -> None:
            with suppress(EOFError, ConnectionError):
                while connection.poll(None):
                    with hearing:
                        heard.put(connection.recv())
            heard.put(None)

        def is_more() -> bool:
            with hearing:
                return connection.poll() or not heard.empty()

        # Pipes hold little: threads read and write them, so that the asking process never waits for this one to do so.
        Thread(target=listen, daemon=True).start()
        asked = list[tuple[int, Question]]()
        # This process may be killed meanwhile; Ctrl-C reaches all processes, and the asking one reports it.
        with suppress(ConnectionError, KeyboardInterrupt), ThreadPoolExecutor(1) as telling:

            def tell(number: int, answer: tuple[Answer] | None) -> None:
                telling.submit(connection.send_bytes, pickle.dumps((number, answer)))

            while True:
                # Which question is the latest is known once all messages have been read.
                while not asked or is_more():
                    message = heard.get()
                    if message is None:
                        return
                    number, wanted = message
                    if wanted is None:
                        asked = [one for one in asked if one[0] != number]
                    else:
                        question, can_wait = wanted
                        asked.insert(0 if can_wait else len(asked), (number, question))
                number, question = asked.pop()
                tell(number, None)
                tell(number, (self._answer(question),))
