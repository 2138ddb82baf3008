"""Copies: processes that begin as copies of this one, and answer what they are asked while it goes on.

They do not know what is asked, nor who asks.
"""

from __future__ import annotations

import multiprocessing
import pickle
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


class Copy(Generic[Question, Answer]):
    """A process that knows what this one knows as it begins; of what it was asked it answers the latest first.

    answer   what is asked for; the same here and there, as here it is worked out where the process is gone
    It is sent numbers with a question, and whether that can wait, or with none where it is given up; and tells of each
    that it begins with it, and then, by the same number, the answer.
    """

    # This process's ends of all that there are: a copy has them too.
    _ends: ClassVar[set[Connection]] = set()

    def __init__(self, answer: Callable[[Question], Answer]) -> None:
        context = multiprocessing.get_context("fork")
        self._answer, self._numbers = answer, count()
        self._asked, self._told = dict[int, Question](), dict[int, Answer]()
        self._begun = set[int]()
        self._end, theirs = context.Pipe()
        self._ends.add(self._end)
        self.process = context.Process(target=self._serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, question: Question, can_wait: bool = False) -> int:
        """Gives by which number the answer is known.

        can_wait   whether all else is answered first, also what is asked later
        """
        number = next(self._numbers)
        self._asked[number] = question
        # That it is gone is found when it should have answered.
        with suppress(ConnectionError):
            self._end.send((number, (question, can_wait)))
        return number

    def answer(self, number: int) -> Answer:
        """Waits for it; each is given once."""
        try:
            while number not in self._told:
                self._hear()
        except (EOFError, ConnectionError):
            return self._answer(self._asked.pop(number))
        del self._asked[number]
        return self._told.pop(number)

    def give_up(self, number: int) -> bool:
        """Whether it was not begun with; then it is not answered."""
        with suppress(EOFError, ConnectionError):
            while self._end.poll():
                self._hear()
            if number in self._begun:
                return False
            self._end.send((number, None))
        del self._asked[number]
        return True

    def _hear(self) -> None:
        number, told = pickle.loads(self._end.recv_bytes())
        self._begun.add(number)
        # What was given up when it had begun nobody waits for.
        if told is not None and number in self._asked:
            self._told[number] = told[0]

    def end(self, at_once: bool = False) -> None:
        """What was asked and not answered is given up; at once, or after what is being worked out."""
        self._ends.discard(self._end)
        self._end.close()
        if at_once:
            self.process.terminate()
        self.process.join()

    def _serve(self, connection: Connection) -> None:
        """The life of the process: until nothing more can be asked."""
        # As long as a copy of the other end is open, here or with those that begin later, that is not heard.
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

        # The one that asks waits neither until it is heard, which is while something is worked out, nor to be told.
        Thread(target=listen, daemon=True).start()
        asked = list[tuple[int, Question]]()
        # It may be killed meanwhile, and Ctrl-C is for all: it is the one that tells of it.
        with suppress(ConnectionError, KeyboardInterrupt), ThreadPoolExecutor(1) as telling:

            def tell(number: int, told: tuple[Answer] | None) -> None:
                telling.submit(connection.send_bytes, pickle.dumps((number, told)))

            while True:
                # The latest is known once all that was sent is heard.
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
